// What `tide doctor` looks at: a section a file, each a pure function of the machine's files and
// of the facts that only a running system tells.
#pragma once

#include <string>
#include <vector>

namespace tide::cli::doctor {

struct Facts;
class Machine;

enum class Status { kOk, kWarn, kFail, kSkip };
const char* name_of(Status status);

// How `tide doctor --hosts` takes a value that differs between nodes.
enum class Across {
  kNothing,  // not compared
  kNote,     // said
  kEqual,    // said, and a failure
};

struct Check {
  std::string id;     // "nic.mlx5_0.1.link": unique in a report, the same in every release
  std::string title;  // "link"; the text shows checks that differ in their subject alone as one
  Status status = Status::kOk;
  std::string finding;
  std::string remedy;      // empty: nothing is to be done
  std::string value = {};  // what is compared across nodes
  Across across = Across::kNothing;
  std::string subject = {};  // "mlx5_0:1"; empty where there is only one

  Check& of(std::string name) {
    subject = std::move(name);
    return *this;
  }
  Check& equal(std::string shown) {
    value = std::move(shown);
    across = Across::kEqual;
    return *this;
  }
  Check& note(std::string shown) {
    value = std::move(shown);
    across = Across::kNote;
    return *this;
  }
};

struct Section {
  std::string title;
  std::vector<Check> checks = {};

  Check& add(Status status, std::string id, std::string what, std::string finding,
             std::string remedy = {}) {
    return checks.emplace_back(
        Check{std::move(id), std::move(what), status, std::move(finding), std::move(remedy)});
  }
  Check& ok(std::string id, std::string what, std::string finding) {
    return add(Status::kOk, std::move(id), std::move(what), std::move(finding));
  }
  Check& skip(std::string id, std::string what, std::string finding, std::string remedy = {}) {
    return add(Status::kSkip, std::move(id), std::move(what), std::move(finding),
               std::move(remedy));
  }
  Check& warn(std::string id, std::string what, std::string finding, std::string remedy) {
    return add(Status::kWarn, std::move(id), std::move(what), std::move(finding),
               std::move(remedy));
  }
  Check& fail(std::string id, std::string what, std::string finding, std::string remedy) {
    return add(Status::kFail, std::move(id), std::move(what), std::move(finding),
               std::move(remedy));
  }
};

struct Report {
  std::string host;
  std::vector<Section> sections;

  int count(Status status) const;
};

Section check_tide(const Machine& machine, const Facts& facts);
Section check_python(const Machine& machine, const Facts& facts);
Section check_gpus(const Machine& machine, const Facts& facts);
Section check_nics(const Machine& machine, const Facts& facts);
Section check_gpu_direct(const Machine& machine, const Facts& facts);
Section check_limits(const Machine& machine, const Facts& facts);

std::string report_text(const Report& report);
std::string report_json(const Report& report);

// Compares what `tide doctor --json` wrote on several nodes. Appends to `text` what differs;
// returns whether something that must be equal does. Throws tide::Error for a file that is no such
// report.
bool compare_hosts(const std::vector<std::string>& files, bool json, std::string* text);

}  // namespace tide::cli::doctor
