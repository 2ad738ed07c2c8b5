// `tide`: one command line for the planner and, file by file, whatever else Tide can be asked.
#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "include/tide/nearest.h"
#include "shim/cli/commands.h"

namespace {

// CLI11's sentences, but for a number that is none: its own has no remedy.
std::string usage_error(const CLI::App* app, const CLI::Error& error) {
  const std::string what = error.what(), begin = "Could not convert: ";
  const size_t equals = what.find(" = ");
  if (!what.starts_with(begin) || equals == std::string::npos) {
    return CLI::FailureMessage::simple(app, error);
  }
  return what.substr(begin.size(), equals - begin.size()) + ": '" + what.substr(equals + 3) +
         "' is not a whole number\nRun with --help for more information.\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "run") return tide::cli::run(argc - 1, argv + 1);
  CLI::App tide("Tide: FSDP2 without layout copies", "tide");
  tide.set_version_flag("--version", "tide " TIDE_VERSION);
  tide.require_subcommand(1);
  tide.failure_message(usage_error);
  tide.footer("Exit status: 0 done; 1 bad input or no plan; 2 bad command line; 3 nothing fits.");
  tide::cli::add_plan(tide);
  tide::cli::add_report(tide);
  tide::cli::add_run(tide);
  tide::cli::add_profile(tide);
  tide::cli::add_doctor(tide);
  tide::cli::add_build_torch(tide);
  tide::cli::add_completion(tide);
  std::vector<std::string> commands;
  for (const CLI::App* command : tide.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command->get_name());
  }
  if (argc > 1 && argv[1][0] != '-' && !std::count(commands.begin(), commands.end(), argv[1])) {
    std::cerr << "tide: there is no subcommand '" << argv[1] << "'; the nearest is '"
              << tide::nearest(argv[1], commands) << "'\n";
    return tide::cli::kUsage;
  }
  try {
    tide.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tide.exit(error) == 0 ? tide::cli::kDone : tide::cli::kUsage;
  } catch (const tide::cli::Exit& exit) {
    return exit.status;
  } catch (const std::exception& error) {
    std::cerr << "tide: " << error.what() << "\n";
    return tide::cli::kFailed;
  }
  return tide::cli::kDone;
}
