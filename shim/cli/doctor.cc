// `tide doctor`: checks one node and explains what it found; `--hosts` compares nodes.
#include "shim/cli/doctor.h"

#include <cstdlib>
#include <iostream>
#include <memory>

#include "include/tide/error.h"
#include "shim/cli/commands.h"
#include "shim/cli/doctor_facts.h"
#include "shim/cli/doctor_machine.h"

namespace tide::cli {
namespace {

struct DoctorOptions {
  bool json = false, facts = false;
  std::string python, root;
  std::vector<std::string> hosts;
};

std::string default_python() {
  const char* configured = std::getenv("TIDE_PYTHON");
  return configured != nullptr && *configured != '\0' ? configured : "python3";
}

void run(const DoctorOptions& options) {
  if (!options.hosts.empty()) {
    if (options.hosts.size() < 2) {
      throw Error("--hosts compares nodes, and got one file", "name a file of each node");
    }
    std::string text;
    const bool differs = doctor::compare_hosts(options.hosts, options.json, &text);
    std::cout << text;
    if (differs) throw Exit{kFailed};
    return;
  }
  const bool live = options.root.empty();
  const doctor::Machine machine(options.root);
  const doctor::Facts facts =
      live ? doctor::gather_facts(options.python.empty() ? default_python() : options.python)
           : doctor::read_facts(options.root + "/facts.json");
  if (options.facts) {
    std::cout << doctor::facts_json(facts);
    return;
  }
  const doctor::Report report{
      facts.host,
      {check_tide(machine, facts), check_python(machine, facts), check_gpus(machine, facts),
       check_nics(machine, facts), check_gpu_direct(machine, facts), check_limits(machine, facts)}};
  std::cout << (options.json ? report_json(report) : report_text(report));
  if (report.count(doctor::Status::kFail) > 0) throw Exit{kFailed};
}

}  // namespace

void add_doctor(CLI::App& tide) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* doctor =
      tide.add_subcommand("doctor", "Checks this node and says what to do about what it finds");
  doctor->add_flag("--json", options->json, "machine-readable, for --hosts too");
  doctor->add_option("--python", options->python,
                     "the python of the jobs; without it $TIDE_PYTHON, else python3");
  doctor->add_option("--hosts", options->hosts,
                     "compare what --json wrote on several nodes, a file each");
  // For tests: another machine's files, with facts.json in them, which --facts writes. An empty
  // group keeps an option out of the help.
  doctor->add_option("--root", options->root)->group("");
  doctor->add_flag("--facts", options->facts)->group("");
  doctor->footer(
      "Exit status: 0 nothing failed, or nothing that must be equal differs; 1 something did; 2 "
      "bad "
      "command line.");
  doctor->callback([options] { run(*options); });
}

}  // namespace tide::cli
