// A report of `tide doctor` as text and as JSON.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "shim/cli/doctor.h"
#include "shim/cli/doctor_format.h"

namespace tide::cli::doctor {

const char* name_of(Status status) {
  switch (status) {
    case Status::kOk:
      return "ok";
    case Status::kWarn:
      return "warn";
    case Status::kFail:
      return "fail";
    case Status::kSkip:
      return "skip";
  }
  return "";
}

int Report::count(Status status) const {
  long found = 0;
  for (const Section& section : sections) {
    found += std::count_if(section.checks.begin(), section.checks.end(),
                           [status](const Check& check) { return check.status == status; });
  }
  return static_cast<int>(found);
}

std::string report_text(const Report& report) {
  std::string text = "tide doctor on " + report.host + "\n";
  size_t width = 0;
  for (const Section& section : report.sections) {
    for (const Check& check : section.checks) width = std::max(width, check.title.size());
  }
  for (const Section& section : report.sections) {
    text += "\n" + section.title + "\n";
    for (const Check& check : section.checks) {
      const std::string status = name_of(check.status);
      text += "  " + status + std::string(6 - status.size(), ' ') + check.title +
              std::string(width + 2 - check.title.size(), ' ') + check.finding + "\n";
      if (!check.remedy.empty()) text += std::string(10, ' ') + "-> " + check.remedy + "\n";
    }
  }
  text += "\n";
  for (Status status : {Status::kOk, Status::kWarn, Status::kFail, Status::kSkip}) {
    text += std::string(status == Status::kOk ? "" : ", ") + std::to_string(report.count(status)) +
            " " + name_of(status);
  }
  return text + "\n";
}

std::string report_json(const Report& report) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Section& section : report.sections) {
    for (const Check& check : section.checks) {
      nlohmann::ordered_json entry{{"id", check.id},           {"section", section.title},
                                   {"title", check.title},     {"status", name_of(check.status)},
                                   {"finding", check.finding}, {"remedy", check.remedy}};
      if (check.across != Across::kNothing) {
        entry["value"] = check.value;
        entry["across"] = check.across == Across::kEqual ? "equal" : "note";
      }
      checks.push_back(std::move(entry));
    }
  }
  nlohmann::ordered_json summary;
  for (Status status : {Status::kOk, Status::kWarn, Status::kFail, Status::kSkip}) {
    summary[name_of(status)] = report.count(status);
  }
  const nlohmann::ordered_json all{{"format", kFormat},
                                   {"tide", TIDE_VERSION},
                                   {"host", report.host},
                                   {"summary", summary},
                                   {"checks", checks}};
  return all.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tide::cli::doctor
