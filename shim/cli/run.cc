// `tide run`: sets the environment of a job, says what it set, and becomes the job. It has an App
// of its own besides the one in the tree of subcommands: only options that a run needs are built,
// and nothing of the command stays when the job starts.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "include/tide/error.h"
#include "plugin/profile/key.h"
#include "plugin/profile/profile.h"
#include "shim/cli/commands.h"
#include "shim/cli/installation.h"

namespace tide::cli {
namespace {

// What a shell answers when it cannot start a command.
constexpr int kNotExecutable = 126, kNotFound = 127;

struct RunOptions {
  std::string profile, report;
  bool observe = false, quiet = false;
  bool net = false, no_net = false;
};

void add_options(CLI::App& run, RunOptions* options) {
  run.add_option("--profile", options->profile,
                 "tuning profile of the job: a file, or the name of one that came with Tide "
                 "(TIDE_PROFILE)");
  run.add_flag("--observe", options->observe,
               "change nothing and measure what stock pays (TIDE_SHIM=observe)");
  CLI::Option* net = run.add_flag(
      "--net", options->net, "NCCL gets Tide's net plugin; an error where it is not installed");
  run.add_flag("--no-net", options->no_net, "NCCL gets no net plugin from Tide")->excludes(net);
  run.add_option("--report", options->report,
                 "folder for the reports of the ranks, report-RANK.json; made where it is missing "
                 "(TIDE_REPORT)");
  run.add_flag("-q,--quiet", options->quiet, "do not print what is set");
  run.footer(
      "tide run [OPTIONS] -- COMMAND [ARGUMENTS]\n"
      "A variable that is set already stays as it is, and is named. Exit status: the job's; 127 "
      "there is\nno such command; 126 it cannot be executed; 1 Tide is not as asked for; 2 bad "
      "command line.");
}

// Sets variables and tells of each.
class Environment {
 public:
  explicit Environment(bool quiet) : quiet_(quiet) {}

  // The user's own value stays. Returns true when ours was taken.
  bool set(const char* name, const std::string& value, const std::string& note = "") {
    if (const char* present = own_value(name); present != nullptr) {
      if (value != present) {
        say(std::string(name) + "=" + present + " stays: it was set before; not set to " + value);
      }
      return value == present;
    }
    put(name, value, note);
    return true;
  }

  // Puts an entry at the front or the end of a list that keeps what it has.
  void add(const char* name, const std::string& entry, const char* separators, bool at_front) {
    const char* present = own_value(name);
    if (present == nullptr) return put(name, entry, "");
    if (holds(present, entry, separators)) {
      return say(std::string(name) + " has " + entry + " already");
    }
    put(name, at_front ? entry + ":" + present : std::string(present) + ":" + entry, "");
  }

  void say(const std::string& line) {
    if (!quiet_) fprintf(stderr, "tide run: %s\n", line.c_str());
  }

 private:
  static const char* own_value(const char* name) {
    const char* value = getenv(name);
    return value != nullptr && value[0] != '\0' ? value : nullptr;
  }

  static bool holds(const std::string& list, const std::string& entry, const char* separators) {
    for (size_t begin = 0; begin <= list.size();) {
      const size_t end = std::min(list.find_first_of(separators, begin), list.size());
      if (list.compare(begin, end - begin, entry) == 0) return true;
      begin = end + 1;
    }
    return false;
  }

  void put(const char* name, const std::string& value, const std::string& note) {
    setenv(name, value.c_str(), 1);
    say(std::string(name) + "=" + value + note);
  }

  const bool quiet_;
};

// ld.so takes both of them as separators and knows no way to quote them.
void check_preloadable(const std::string& path) {
  if (path.find_first_of(" :") != std::string::npos) {
    throw Error("LD_PRELOAD cannot carry " + path + ": a space or colon ends a name there",
                "install Tide under another path");
  }
}

void set_net(const RunOptions& options, const Installation& tide, Environment& environment) {
  if (options.no_net) return;
  if (tide.net.empty()) {
    const std::string lacks = "there is no libnccl-net-tide.so beside " + tide.shim();
    if (options.net) throw Error(lacks, "install libibverbs-dev and build Tide again");
    return environment.say("NCCL_NET_PLUGIN is not set: " + lacks);
  }
  if (environment.set("NCCL_NET_PLUGIN", "tide", "  (" + tide.net + ")")) {
    environment.add("LD_LIBRARY_PATH", tide.net.substr(0, tide.net.rfind('/')), ":;", false);
  } else if (options.net) {
    throw Error("--net: NCCL_NET_PLUGIN is set to another plugin", "unset it");
  }
}

// What the job would say about the profile, and about variables that override it, is said now. A
// path is made absolute: ranks may start elsewhere.
void set_profile(const std::string& asked, Environment& environment) {
  const profile::Lookup variables = profile::environment();
  const profile::Profile chosen =
      profile::load_profile([&](const std::string& name) -> std::optional<std::string> {
        return name == profile::kProfileVariable ? asked : variables(name);
      });
  const bool path = asked.find('/') != std::string::npos || asked.ends_with(".yaml");
  const std::string value =
      path ? std::filesystem::absolute(asked).lexically_normal().string() : asked;
  environment.set("TIDE_PROFILE", value,
                  path || chosen.path().empty() ? "" : "  (" + chosen.path() + ")");
}

// What the job would say about its variables, once for all ranks.
void check_variables(Environment& environment) {
  profile::load_profile(profile::environment());
  for (const std::string& line : profile::unknown_variables()) environment.say(line);
}

void set_report(const std::string& folder, Environment& environment) {
  std::error_code failed;
  const std::filesystem::path path = std::filesystem::absolute(folder, failed);
  if (!failed) std::filesystem::create_directories(path, failed);
  if (!failed && access(path.c_str(), W_OK | X_OK) != 0)
    failed.assign(errno, std::generic_category());
  if (failed)
    throw Error("--report " + folder + ": " + failed.message(), "name a folder to write to");
  environment.set("TIDE_REPORT", (path.lexically_normal() / "report-%r.json").string());
}

void set_environment(const RunOptions& options) {
  const Installation tide = find_installation();
  Environment environment(options.quiet);
  const std::string shim = tide.shim();
  if (shim.empty()) {
    throw Error("there is no libtide-shim.so for " + tide.command,
                tide.build_tree ? "make build" : "install Tide again");
  }
  check_preloadable(shim);
  if (!options.profile.empty()) set_profile(options.profile, environment);
  check_variables(environment);
  if (!options.report.empty()) set_report(options.report, environment);
  environment.add("LD_PRELOAD", shim, ": ", true);
  set_net(options, tide, environment);
  if (options.observe) environment.set("TIDE_SHIM", "observe");
}

// Replaces this process. Returns only when that fails.
int become(std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  fprintf(stderr, "tide run: %s: %s\n", command[0].c_str(),
          error == ENOENT ? "command not found" : strerror(error));
  return error == ENOENT ? kNotFound : kNotExecutable;
}

}  // namespace

void add_run(CLI::App& tide) {
  static RunOptions unused;  // run() takes the command line; this is for help and completion
  add_options(*tide.add_subcommand("run", "Runs a job with Tide in its environment"), &unused);
}

int run(int argc, char** argv) {
  RunOptions options;
  CLI::App app("Runs a job with Tide in its environment", "tide run");
  add_options(app, &options);
  app.prefix_command();
  int own = 1;
  while (own < argc && strcmp(argv[own], "--") != 0) ++own;
  std::vector<std::string> command;
  try {
    app.parse(own, argv);
    command = app.remaining();
    if (!command.empty() && command[0][0] == '-') throw CLI::ExtrasError({command[0]});
    // `tide run COMMAND -- X`: the dashes are the command's.
    command.insert(command.end(), argv + std::min(own + (command.empty() ? 1 : 0), argc),
                   argv + argc);
    if (command.empty()) throw CLI::RequiredError("-- COMMAND");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  try {
    set_environment(options);
  } catch (const std::exception& error) {
    std::cerr << "tide run: " << error.what() << "\n";
    return kFailed;
  }
  return become(command);
}

}  // namespace tide::cli
