// `tide build-torch`: compiles libtide-torch for the torch of a python, from the sources that were
// installed with Tide, and puts it where libtide-shim.so finds it.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <thread>

#include "include/tide/error.h"
#include "shim/cli/commands.h"
#include "shim/cli/doctor_facts.h"
#include "shim/cli/installation.h"
#include "shim/cli/process.h"

namespace tide::cli {
namespace {

namespace fs = std::filesystem;

struct BuildOptions {
  std::string python;
  unsigned jobs = 0;
  bool dry_run = false;
};

struct Plan {
  std::string python, torch, library;  // "libtide-torch-2.13.0.so"
  std::string build;                   // folder of make's BUILD
  bool temporary = false;              // it is made for this, and removed
  fs::path target;                     // folder that gets the library
  bool user = false;                   // target is in the user's own prefix
  std::vector<std::string> command;
};

Plan make_plan(const BuildOptions& options, const Installation& tide) {
  const char* configured = getenv("TIDE_PYTHON");
  std::string python = options.python;
  if (python.empty()) python = configured != nullptr && *configured ? configured : "python3";
  const doctor::PythonFacts facts = doctor::ask_python(python, "");
  const char* remedy = "name the job's python: tide build-torch --python /path/of/python";
  if (!facts.error.empty()) throw Error("cannot run " + python + ": " + facts.error, remedy);
  if (!facts.torch_error.empty()) throw Error(facts.executable + ": " + facts.torch_error, remedy);
  if (tide.sources.empty() || tide.libraries.empty()) {
    throw Error("the sources of libtide-torch or the libraries are not with " + tide.command,
                "install Tide again");
  }
  Plan plan{facts.executable, facts.torch_version, {}, {}, false, tide.libraries, false, {}};
  plan.library =
      "libtide-torch-" + facts.torch_version.substr(0, facts.torch_version.find('+')) + ".so";
  if (tide.build_tree) {
    plan.build = fs::path(tide.libraries).parent_path();
  } else {
    plan.temporary = true;
    plan.build = (fs::temp_directory_path() / "tide-build-XXXXXX").string();
    if (access(tide.libraries.c_str(), W_OK) != 0) {
      if (tide.user_prefix.empty()) {
        throw Error("no permission to write to " + tide.libraries + ", and there is no home",
                    "run it as the user who installed Tide");
      }
      plan.user = true;
      plan.target = fs::path(tide.user_prefix) / "lib";
    }
  }
  const unsigned jobs = options.jobs > 0 ? options.jobs : std::thread::hardware_concurrency();
  plan.command = {"make",
                  "-C",
                  tide.sources,
                  "--no-print-directory",
                  "-j" + std::to_string(std::max(jobs, 1u)),
                  "BUILD=" + plan.build,
                  "PYTHON=" + plan.python,
                  plan.build + "/lib/" + plan.library};
  return plan;
}

void say(const Plan& plan) {
  std::cout << "python: " << plan.python << "\ntorch: " << plan.torch << "\nmake:";
  for (const std::string& word : plan.command) std::cout << " " << word;
  std::cout << "\nto: " << (plan.target / plan.library).string() << std::endl;
}

// A copy that appears at once: a job that starts meanwhile sees the old file or the new one.
void place(const fs::path& from, const fs::path& to) {
  const fs::path fresh = to.string() + ".new";
  fs::copy_file(from, fresh, fs::copy_options::overwrite_existing);
  fs::rename(fresh, to);
}

// The user's own prefix: libtide-shim.so looks beside itself, so it is there too, and links to the
// other libraries that are installed.
void prepare_user_prefix(const Installation& tide, const fs::path& target) {
  fs::create_directories(target);
  place(tide.libraries + "/libtide-shim.so", target / "libtide-shim.so");
  for (const fs::directory_entry& entry : fs::directory_iterator(tide.libraries)) {
    const fs::path link = target / entry.path().filename();
    if (entry.path().extension() == ".so" && !fs::exists(fs::symlink_status(link))) {
      fs::create_symlink(entry.path(), link);
    }
  }
  const fs::path configs = fs::path(tide.user_prefix) / "share/tide/configs";
  if (!tide.configs.empty() && !fs::exists(fs::symlink_status(configs))) {
    fs::create_directories(configs.parent_path());
    fs::create_symlink(tide.configs, configs);
  }
}

void build(Plan plan, const Installation& tide) {
  const std::string pattern = plan.build;
  if (plan.temporary) {
    if (mkdtemp(plan.build.data()) == nullptr) {
      throw Error("cannot make a folder in " + fs::temp_directory_path().string(),
                  "set TMPDIR to one with 100 MB of room");
    }
    for (std::string& word : plan.command) {
      const size_t at = word.find(pattern);
      if (at != std::string::npos) word.replace(at, pattern.size(), plan.build);
    }
  }
  say(plan);
  const Outcome outcome = run_in_sight(plan.command);
  const bool built = outcome.error.empty() && outcome.status == 0;
  if (built && plan.temporary) {
    if (plan.user) prepare_user_prefix(tide, plan.target);
    place(plan.build + "/lib/" + plan.library, plan.target / plan.library);
  }
  if (plan.temporary) fs::remove_all(plan.build);
  if (!built) {
    throw Error("make " + (outcome.error.empty() ? "ended with " + std::to_string(outcome.status)
                                                 : ": " + outcome.error),
                "g++ 12 or later, make, and the headers of nlohmann-json3-dev and libyaml-dev are "
                "needed; its own message is above");
  }
  std::cout << "built: " << (plan.target / plan.library).string() << "\n";
}

void run(const BuildOptions& options) {
  const Installation tide = find_installation();
  const Plan plan = make_plan(options, tide);
  if (options.dry_run) {
    say(plan);
  } else {
    build(plan, tide);
  }
}

}  // namespace

void add_build_torch(CLI::App& tide) {
  auto options = std::make_shared<BuildOptions>();
  CLI::App* command = tide.add_subcommand(
      "build-torch", "Compiles libtide-torch for the torch of a python; takes minutes");
  command->add_option("--python", options->python,
                      "the python of the jobs; without it $TIDE_PYTHON, else python3");
  command->add_option("-j,--jobs", options->jobs, "compilers at a time; 0 = as many as processors")
      ->capture_default_str();
  command->add_flag("--dry-run", options->dry_run,
                    "print what would be run, and where it would go");
  command->callback([options] { run(*options); });
}

}  // namespace tide::cli
