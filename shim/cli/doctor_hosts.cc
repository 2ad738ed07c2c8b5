// `tide doctor --hosts`: what differs between the reports of several nodes.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "include/tide/error.h"
#include "shim/cli/doctor.h"
#include "shim/cli/doctor_format.h"
#include "shim/cli/doctor_machine.h"

namespace tide::cli::doctor {
namespace {

using Json = nlohmann::ordered_json;

struct Node {
  std::string host;
  std::map<std::string, Json> checks;  // by id
  std::vector<std::string> order;
};

// One check whose value is not the same everywhere; groups: values and who has them, most first.
struct Difference {
  std::string id, title;
  bool must_be_equal = false;
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
};

constexpr char kAbsent[] = "absent";

Node read_node(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw Error("cannot read " + file + ": " + std::strerror(errno));
  try {
    const Json report = Json::parse(stream);
    if (report.value("format", "") != kFormat) {
      throw Error(file + " is no report of this kind",
                  "tide doctor --json >" + file + " on the node");
    }
    Node node{report.at("host").get<std::string>(), {}, {}};
    for (const Json& check : report.at("checks")) {
      const std::string id = check.at("id").get<std::string>();
      if (check.contains("value")) {
        check.at("value").get<std::string>();
        check.at("across").get<std::string>();
        check.at("title").get<std::string>();
        check.at("subject").get<std::string>();
        node.checks[id] = check;
        node.order.push_back(id);
      }
    }
    return node;
  } catch (const Json::exception& error) {
    throw Error(file + " is no report of tide doctor --json: " + error.what());
  }
}

// Host names, made different where two reports come from one.
void name_nodes(std::vector<Node>& nodes, const std::vector<std::string>& files) {
  std::map<std::string, int> uses;
  for (const Node& node : nodes) ++uses[node.host];
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (uses[nodes[i].host] > 1) nodes[i].host += " (" + files[i] + ")";
  }
}

std::vector<Difference> differences(const std::vector<Node>& nodes) {
  std::vector<Difference> found;
  std::set<std::string> seen;
  for (const Node& source : nodes) {
    for (const std::string& id : source.order) {
      if (!seen.insert(id).second) continue;
      const Json& first = source.checks.at(id);
      const std::string subject = first.at("subject").get<std::string>();
      Difference difference{
          id,
          first.at("title").get<std::string>() + (subject.empty() ? "" : " " + subject),
          false,
          {}};
      bool everywhere = true;
      for (const Node& node : nodes) {
        const auto check = node.checks.find(id);
        const bool here = check != node.checks.end();
        everywhere = everywhere && here;
        const std::string value = here ? check->second.at("value").get<std::string>() : kAbsent;
        auto& groups = difference.groups;
        auto group = std::find_if(groups.begin(), groups.end(),
                                  [&](const auto& entry) { return entry.first == value; });
        if (group == groups.end()) group = groups.insert(groups.end(), {value, {}});
        group->second.push_back(node.host);
      }
      if (difference.groups.size() == 1) continue;
      // Devices have other names on other machines; what they are is compared as a whole.
      difference.must_be_equal = everywhere && first.at("across").get<std::string>() == "equal";
      std::stable_sort(
          difference.groups.begin(), difference.groups.end(),
          [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
      found.push_back(std::move(difference));
    }
  }
  return found;
}

std::string text_of(const std::vector<Node>& nodes, const std::vector<Difference>& found) {
  std::string text = plural(nodes.size(), "node") + " compared\n";
  size_t width = 0, failures = 0;
  for (const Difference& difference : found) width = std::max(width, difference.title.size());
  for (const Difference& difference : found) {
    failures += difference.must_be_equal;
    const auto& groups = difference.groups;
    const bool majority = groups[0].second.size() > groups[1].second.size();
    text += std::string(difference.must_be_equal ? "  fail  " : "  note  ") + difference.title +
            std::string(width + 2 - difference.title.size(), ' ');
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto& [value, hosts] = groups[i];
      const bool most = majority && i == 0;
      text += (i == 0 ? "" : "; ") + (value.empty() ? "nothing" : value) + " on " +
              (most ? plural(hosts.size(), "node") : join(hosts, ", "));
    }
    text += "\n";
  }
  if (found.empty()) return text + "  ok    nothing differs\n";
  return text + plural(failures, "difference") + " that must not be, " +
         std::to_string(found.size() - failures) + " to know of\n";
}

std::string json_of(const std::vector<Node>& nodes, const std::vector<Difference>& found) {
  Json hosts = Json::array(), list = Json::array();
  for (const Node& node : nodes) hosts.push_back(node.host);
  for (const Difference& difference : found) {
    Json groups = Json::array();
    for (const auto& [value, members] : difference.groups) {
      groups.push_back(Json{{"value", value}, {"hosts", members}});
    }
    list.push_back(Json{{"id", difference.id},
                        {"title", difference.title},
                        {"status", difference.must_be_equal ? "fail" : "note"},
                        {"groups", groups}});
  }
  return Json{{"hosts", hosts}, {"differences", list}}.dump(1) + "\n";
}

}  // namespace

bool compare_hosts(const std::vector<std::string>& files, bool json, std::string* text) {
  std::vector<Node> nodes;
  for (const std::string& file : files) nodes.push_back(read_node(file));
  name_nodes(nodes, files);
  const std::vector<Difference> found = differences(nodes);
  *text += json ? json_of(nodes, found) : text_of(nodes, found);
  return std::any_of(found.begin(), found.end(),
                     [](const Difference& difference) { return difference.must_be_equal; });
}

}  // namespace tide::cli::doctor
