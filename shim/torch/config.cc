#include "shim/torch/config.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>

#include "include/tide/nearest.h"

namespace tide::shim {
namespace {

// Takes the text of a value into the config; false: not a value of this variable.
using Reader = std::function<bool(const std::string&, Config&)>;

template <typename Enum>
Reader one_of(Enum Config::*field, std::vector<std::pair<std::string, Enum>> choices) {
  return [field, choices = std::move(choices)](const std::string& text, Config& config) {
    for (const auto& [name, value] : choices) {
      if (name != text) continue;
      config.*field = value;
      return true;
    }
    return false;
  };
}

// "200ms", "30s", "10min"; at least a millisecond, at most a day.
std::optional<std::chrono::milliseconds> parse_duration(const std::string& text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [unit, failed] = std::from_chars(text.data(), end, number);
  if (failed != std::errc() || number <= 0) return std::nullopt;
  const std::map<std::string, int64_t> units = {{"ms", 1}, {"s", 1000}, {"min", 60000}};
  const auto scale = units.find(std::string(unit, end));
  constexpr int64_t kDay = 24 * 3600 * 1000;
  if (scale == units.end() || number > kDay / scale->second) return std::nullopt;
  return std::chrono::milliseconds(number * scale->second);
}

bool parse_local_ranks(const std::string& text, Config& config) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, number);
  if (failed != std::errc() || rest != end || number < 1 || number > 1024) return false;
  config.local_ranks = number;
  return true;
}

struct Entry {
  Variable variable;
  Reader read;
};

const std::vector<Entry>& table() {
  static const std::vector<Entry> entries = {
      {{"TIDE_SHIM", "on | observe | off", "on",
        "on: Tide carries what it can. observe: nothing changes, the cost of stock is measured. "
        "off: Tide stays out."},
       one_of(&Config::mode,
              {{"on", Mode::kOn}, {"observe", Mode::kObserve}, {"off", Mode::kOff}})},
      {{"TIDE_LOG", "error | warn | info | debug", "warn", "What goes to standard error."},
       one_of(&Config::log, {{"error", LogLevel::kError},
                             {"warn", LogLevel::kWarn},
                             {"info", LogLevel::kInfo},
                             {"debug", LogLevel::kDebug}})},
      {{"TIDE_REPORT", "a file's path, %r stands for the rank", "none",
        "A JSON report written when the process exits."},
       [](const std::string& text, Config& config) {
         config.report = text;
         return !text.empty();
       }},
      {{"TIDE_ALL_GATHER", "layout | coalesced | stock", "layout",
        "The best tier an all-gather may take."},
       one_of(&Config::all_gather, {{"layout", GatherChoice::kLayout},
                                    {"coalesced", GatherChoice::kCoalesced},
                                    {"stock", GatherChoice::kStock}})},
      {{"TIDE_REDUCE_SCATTER", "layout | stock", "layout", "Whether Tide carries reduce-scatters."},
       one_of(&Config::reduce_scatter,
              {{"layout", ReduceChoice::kLayout}, {"stock", ReduceChoice::kStock}})},
      {{"TIDE_TIMEOUT", "a duration: 200ms, 30s, 10min", "the process group's",
        "How long a collective waits for its peers before it fails."},
       [](const std::string& text, Config& config) {
         config.timeout = parse_duration(text);
         return config.timeout.has_value();
       }},
      {{"TIDE_JOIN_TIMEOUT", "a duration: 200ms, 30s, 10min", "60s",
        "How long the ranks of a process group wait for each other to announce Tide, once; then "
        "the group stays stock."},
       [](const std::string& text, Config& config) {
         const auto duration = parse_duration(text);
         if (duration) config.join_timeout = *duration;
         return duration.has_value();
       }},
      {{"TIDE_LOCAL_RANKS", "a number from 1 to 1024", "as the machine is",
        "Ranks that count as one node: several nodes on one machine, for tests."},
       parse_local_ranks},
      {{"TIDE_CUDA", "on | off", "off",
        "on: CUDA tensors go through Tide as well, a preview: a job ends with an error when ranks "
        "free "
        "models in different orders. off: they stay stock."},
       one_of(&Config::cuda, {{"on", true}, {"off", false}})},
  };
  return entries;
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Entry& entry : table()) all.emplace_back(entry.variable.name);
  return all;
}

}  // namespace

std::string Config::shared_settings() const {
  const char* modes[] = {"on", "observe", "off"};
  const char* gathers[] = {"layout", "coalesced", "stock"};
  const char* reduces[] = {"layout", "stock"};
  return std::string("TIDE_SHIM=") + modes[static_cast<int>(mode)] +
         " TIDE_ALL_GATHER=" + gathers[static_cast<int>(all_gather)] +
         " TIDE_REDUCE_SCATTER=" + reduces[static_cast<int>(reduce_scatter)] +
         " TIDE_LOCAL_RANKS=" + std::to_string(local_ranks) + " TIDE_CUDA=" + (cuda ? "on" : "off");
}

const std::vector<Variable>& variables() {
  static const std::vector<Variable> list = [] {
    std::vector<Variable> out;
    for (const Entry& entry : table()) out.push_back(entry.variable);
    return out;
  }();
  return list;
}

ConfigResult read_config(const std::vector<std::string>& environment) {
  ConfigResult result;
  for (const std::string& assignment : environment) {
    const size_t equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    // TIDE_NET_ is the net plugin's, which reads and checks it itself.
    if (!name.starts_with("TIDE_") || name.starts_with("TIDE_NET_")) continue;
    const std::string value = equals == std::string::npos ? "" : assignment.substr(equals + 1);
    const auto entry = std::find_if(table().begin(), table().end(),
                                    [&](const Entry& e) { return name == e.variable.name; });
    if (entry == table().end()) {
      result.warnings.push_back(name + " is not a variable of Tide; the nearest is " +
                                std::string(nearest(name, names())));
    } else if (!entry->read(value, result.config) && result.error.empty()) {
      result.error = name + "=" + value + " is not allowed: it takes " + entry->variable.values;
    }
  }
  return result;
}

}  // namespace tide::shim
