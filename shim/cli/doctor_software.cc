// Tide's own libraries, the python of the job, its torch and its NCCL.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "plugin/profile/errors.h"
#include "plugin/profile/profile.h"
#include "shim/cli/doctor.h"
#include "shim/cli/doctor_facts.h"
#include "shim/cli/doctor_machine.h"

namespace tide::cli::doctor {
namespace {

// The oldest torch whose FSDP2 Tide knows.
constexpr int kOldestTorch[] = {2, 9};

// From this NCCL release on it looks for these versions of the two interfaces, newest first; from
// its net.cc and tuner.cc.
struct NcclInterfaces {
  int major, minor, net, tuner;
};
constexpr NcclInterfaces kNccl[] = {{2, 30, 12, 6}, {2, 28, 11, 5}, {2, 26, 10, 4}, {2, 24, 9, 4},
                                    {2, 22, 8, 3},  {2, 21, 8, 2},  {2, 20, 8, 1},  {2, 19, 7, 1}};

void check_library(Section& section, const std::string& id, const std::string& what,
                   const TideLibrary& library) {
  if (library.release == TIDE_VERSION) {
    section.ok(id, what, library.release + ", " + library.path).equal(library.release);
    return;
  }
  const std::string release = library.release.empty() ? "an unknown release" : library.release;
  section
      .fail(id, what, library.path + " is of " + release + ", this command of " TIDE_VERSION,
            "install one release of all parts")
      .equal(release);
}

std::string versions_text(const std::vector<int>& versions) {
  std::vector<std::string> words;
  for (int version : versions) words.push_back("v" + std::to_string(version));
  return join(words, " ");
}

void check_net_library(Section& section, const Facts& facts) {
  const TideFacts& tide = facts.tide;
  if (tide.net.path.empty()) {
    section
        .skip("tide.net", "libnccl-net-tide.so", "not installed: NCCL uses its own transports",
              "for ranks on several nodes, build Tide where libibverbs-dev is installed")
        .equal("none");
    return;
  }
  check_library(section, "tide.net", "libnccl-net-tide.so", tide.net);
  if (!facts.verbs.error.empty()) {
    section.warn("tide.net.verbs", "libibverbs",
                 facts.verbs.error + ": NCCL cannot load the net plugin",
                 "install libibverbs1 and ibverbs-providers, or tide run --no-net");
  } else {
    section.ok("tide.net.verbs", "libibverbs",
               "loads, lists " + plural(facts.verbs.devices.size(), "device"));
  }
}

// "2.13.0" of "2.13.0+cu130"
std::string release_part(const std::string& version) {
  return version.substr(0, version.find_first_of("+ab"));
}

bool older_than(const std::string& version, int major, int minor) {
  int found_major = 0, found_minor = 0;
  return sscanf(version.c_str(), "%d.%d", &found_major, &found_minor) == 2 &&
         (found_major < major || (found_major == major && found_minor < minor));
}

void check_glue(Section& section, const Facts& facts) {
  const std::string release = release_part(facts.python.torch_version);
  const std::string what = "libtide-torch for it", id = "python.tide";
  const auto built = facts.tide.torch.find(release);
  if (built != facts.tide.torch.end()) return check_library(section, id, what, built->second);
  std::vector<std::string> others;
  for (const auto& [version, library] : facts.tide.torch) others.push_back(version);
  section
      .fail(id, what,
            others.empty() ? "there is none: training goes on without Tide"
                           : "there is none for torch " + release + ", only for " +
                                 join(others, ", ") + ": training goes on without Tide",
            "tide build-torch --python " + facts.python.executable)
      .equal("none");
}

void check_nccl(Section& section, const Facts& facts) {
  const PythonFacts& python = facts.python;
  if (python.torch_cuda.empty()) {
    section.skip("python.nccl", "NCCL", "this torch is built without CUDA: it uses gloo")
        .equal("none");
    return;
  }
  if (python.nccl_version.empty()) {
    section.warn("python.nccl", "NCCL", "this torch's libnccl.so.2 was not found",
                 "NCCL_DEBUG=VERSION in a job prints its version");
    return;
  }
  section.ok("python.nccl", "NCCL", python.nccl_version + ", " + python.nccl_file)
      .equal(python.nccl_version);
  if (facts.tide.net.path.empty()) return;
  const auto* wanted = std::find_if(std::begin(kNccl), std::end(kNccl), [&](const auto& entry) {
    return !older_than(python.nccl_version, entry.major, entry.minor);
  });
  const std::string exports = "the plugin has net " + versions_text(facts.tide.net_versions);
  // NCCL takes the newest version that it and the plugin know.
  auto picks = [](const std::vector<int>& versions, int newest) {
    int best = 0;
    for (int version : versions) best = version <= newest ? std::max(best, version) : best;
    return best;
  };
  const int net = wanted == std::end(kNccl) ? 0 : picks(facts.tide.net_versions, wanted->net);
  if (net == 0) {
    section.fail("python.nccl.abi", "NCCL's plugin interface",
                 "NCCL " + python.nccl_version + " knows none of its versions: " + exports,
                 "NCCL 2.19 or later");
    return;
  }
  const int tuner = picks(facts.tide.tuner_versions, wanted->tuner);
  section.ok("python.nccl.abi", "NCCL's plugin interface",
             "it takes net v" + std::to_string(net) + ", " +
                 (tuner > 0 ? "tuner v" + std::to_string(tuner) : "no tuner") + "; " + exports +
                 (facts.tide.tuner_versions.empty()
                      ? ""
                      : ", tuner " + versions_text(facts.tide.tuner_versions)));
}

// Variables by which NCCL gets another transport than Tide's.
bool steers_away(const std::string& name, const std::string& value) {
  return ((name == "NCCL_NET_PLUGIN" || name == "NCCL_TUNER_PLUGIN") &&
          value.find("tide") == std::string::npos) ||
         (name == "NCCL_NET" && value != "Tide" && value != "tide") ||
         (name == "NCCL_IB_DISABLE" && value == "1");
}

// What NCCL reads besides the job's own command line: nobody remembers its files.
void check_settings(Section& section, const Machine& machine, const Facts& facts) {
  std::vector<std::string> found, away;
  auto take = [&](const std::string& name, const std::string& value, const std::string& source) {
    found.push_back(name + "=" + value + source);
    if (steers_away(name, value)) away.push_back(name + "=" + value + source);
  };
  for (const auto& [name, value] : facts.environment) take(name, value, "");
  std::vector<std::string> files = {"/etc/nccl.conf"};
  if (const char* home = getenv("HOME"); home != nullptr && machine.live()) {
    files.push_back(std::string(home) + "/.nccl.conf");
  }
  for (const std::string& file : files) {
    std::istringstream lines(machine.text(file).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      line = trimmed(line.substr(0, line.find('#')));
      const size_t equals = line.find('=');
      if (equals != std::string::npos) {
        take(trimmed(line.substr(0, equals)), trimmed(line.substr(equals + 1)), " in " + file);
      }
    }
  }
  const std::string id = "python.settings", what = "NCCL_ and TIDE_ settings";
  std::vector<std::string> names;
  for (const auto& [name, value] : facts.environment) names.push_back(name);
  std::vector<std::string> wrong = profile::unknown_variables(names), remedies;
  if (!wrong.empty()) remedies.push_back("correct it: it has no effect");
  if (!away.empty()) {
    wrong.push_back(join(away, ", ") + ": NCCL does not use Tide's plugin");
    remedies.push_back("unset it");
  }
  if (!wrong.empty()) {
    section.warn(id, what, join(wrong, "; "), join(remedies, "; ")).note(join(found, " "));
  } else {
    section
        .ok(id, what,
            found.empty() ? "none in the environment and in nccl.conf" : join(found, ", "))
        .note(join(found, " "));
  }
}

// The profile that a job of this environment takes, with all variables that override it.
void check_profile(Section& section, const Machine& machine, const Facts& facts) {
  const std::string id = "tide.profile", what = "profile";
  try {
    const profile::Profile taken = profile::load_profile(
        [&](const std::string& name) -> std::optional<std::string> {
          const auto set = facts.environment.find(name);
          if (set == facts.environment.end()) return std::nullopt;
          return set->second;
        },
        {}, profile::read_machine(machine.root()));
    section.ok(id, what, taken.name() + "; " + taken.reason()).equal(taken.name());
  } catch (const profile::Errors& errors) {
    section
        .fail(id, what, join(errors.lines(), "; "),
              "correct what is named; then tide profile show tells where each value is from")
        .equal("wrong");
  }
}

}  // namespace

Section check_tide(const Machine& machine, const Facts& facts) {
  Section section{"Tide"};
  section.ok("tide.command", "command", TIDE_VERSION ", " + facts.tide.command).equal(TIDE_VERSION);
  if (facts.tide.shim.path.empty()) {
    section
        .fail("tide.shim", "libtide-shim.so", "not found beside the command",
              "install Tide again, or make build in the checkout")
        .equal("none");
  } else {
    check_library(section, "tide.shim", "libtide-shim.so", facts.tide.shim);
  }
  check_net_library(section, facts);
  check_profile(section, machine, facts);
  return section;
}

Section check_python(const Machine& machine, const Facts& facts) {
  Section section{"Python, torch and NCCL"};
  const PythonFacts& python = facts.python;
  if (!python.error.empty()) {
    section.fail("python.run", "python", python.asked + ": " + python.error,
                 "name the job's python: tide doctor --python /path/of/python");
    check_settings(section, machine, facts);
    return section;
  }
  section.ok("python.run", "python", python.version + ", " + python.executable)
      .note(python.version);
  if (!facts.tide.shim.path.empty()) {
    if (python.preloads) {
      section.ok("python.preload", "LD_PRELOAD", "reaches it");
    } else {
      section.fail("python.preload", "LD_PRELOAD",
                   "does not reach it: a static, setuid or setgid program, one with file "
                   "capabilities, or a wrapper that clears the environment",
                   "use a dynamically linked python without such bits; getcap and ls -l show them");
    }
  }
  if (!python.torch_error.empty()) {
    section
        .warn("python.torch", "torch", python.torch_error,
              "if jobs use another python: tide doctor --python /path/of/python")
        .equal("none");
  } else if (older_than(python.torch_version, kOldestTorch[0], kOldestTorch[1])) {
    section
        .fail("python.torch", "torch", python.torch_version + " is older than 2.9",
              "torch 2.9 or later")
        .equal(python.torch_version);
  } else {
    section.ok("python.torch", "torch", python.torch_version).equal(python.torch_version);
    check_glue(section, facts);
    check_nccl(section, facts);
  }
  check_settings(section, machine, facts);
  return section;
}

}  // namespace tide::cli::doctor
