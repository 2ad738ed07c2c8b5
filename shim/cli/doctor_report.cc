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

namespace {

// Checks that say the same of several ports or cards.
struct Line {
  const Check* check;
  std::vector<std::string> subjects;

  std::string title() const {
    const size_t count = subjects.size();
    if (count <= 1) return check->title + (check->subject.empty() ? "" : " " + check->subject);
    return check->title + " " + subjects[0] + " and " + std::to_string(count - 1) + " more";
  }
};

std::vector<Line> lines_of(const Section& section) {
  std::vector<Line> lines;
  for (const Check& check : section.checks) {
    auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return !check.subject.empty() && line.check->title == check.title &&
             line.check->status == check.status && line.check->finding == check.finding &&
             line.check->remedy == check.remedy;
    });
    if (same == lines.end()) {
      // After what is said of others under this title.
      const auto last = std::find_if(lines.rbegin(), lines.rend(), [&](const Line& line) {
        return line.check->title == check.title;
      });
      same = lines.insert(last == lines.rend() ? lines.end() : last.base(), Line{&check, {}});
    }
    same->subjects.push_back(check.subject);
  }
  return lines;
}

}  // namespace

std::string report_text(const Report& report) {
  std::string text = "tide doctor on " + report.host + "\n";
  size_t width = 0;
  for (const Section& section : report.sections) {
    for (const Line& line : lines_of(section)) width = std::max(width, line.title().size());
  }
  for (const Section& section : report.sections) {
    text += "\n" + section.title + "\n";
    for (const Line& line : lines_of(section)) {
      const std::string status = name_of(line.check->status), title = line.title();
      text += "  " + status + std::string(6 - status.size(), ' ') + title +
              std::string(width + 2 - title.size(), ' ') + line.check->finding + "\n";
      if (!line.check->remedy.empty()) {
        text += std::string(10, ' ') + "-> " + line.check->remedy + "\n";
      }
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
      nlohmann::ordered_json entry{
          {"id", check.id},           {"section", section.title},        {"title", check.title},
          {"subject", check.subject}, {"status", name_of(check.status)}, {"finding", check.finding},
          {"remedy", check.remedy}};
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
