// What can be set on the net plugin: one typed table of name, unit, default, range and meaning.
// Values come from TIDE_NET_* variables; a variable of NCCL's own IB transport that means the same
// serves as fallback, so that a job tuned for it needs no new settings.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tide::net {

enum class Pacing : int64_t { kOff = 0, kHead = 1 };
enum class Flush : int64_t { kAuto = 0, kAlways = 1, kNever = 2 };

struct Settings {
  std::string devices;
  std::string interface;
  std::string gid_index;
  int64_t gid_family = 0;  // a verbs::GidFamily
  int64_t queue_pairs = 0;
  int64_t piece_bytes = 0;
  int64_t inline_bytes = 0;
  int64_t traffic_class = 0;
  int64_t control_traffic_class = 0;
  int64_t service_level = 0;
  int64_t timeout = 0;
  int64_t retry_count = 0;
  int64_t relaxed_ordering = 0;
  int64_t ece = 0;
  int64_t gpu_direct = 0;
  int64_t flush = 0;
  int64_t connect_seconds = 0;
  int64_t recovery_seconds = 0;
  int64_t pacing = 0;
  int64_t pacing_peers = 0;
  int64_t pacing_head_bytes = 0;
};

// One row of the table. Exactly one of `number` and `text` is set; a number with `choices` takes
// one of their names, its value is the place in the list.
struct SettingRow {
  const char* name;
  const char* fallback;  // a variable of NCCL, or null
  const char* unit;
  const char* standard;  // the default, as it would be written
  int64_t minimum = 0;
  int64_t maximum = 0;
  std::vector<const char*> choices = {};
  const char* meaning;
  int64_t Settings::*number = nullptr;
  std::string Settings::*text = nullptr;
};

std::span<const SettingRow> setting_table();

// What a name is set to, or nothing.
using Lookup = std::function<std::optional<std::string>(const char* name)>;

// Throws tide::Error naming the variable, its value, what is allowed and where the value came from.
Settings read_settings(const Lookup& lookup);
Lookup environment();

// A line for each TIDE_NET_ variable among `names` that is not in the table, with the nearest name.
std::vector<std::string> unknown_settings(std::span<const std::string> names);
std::vector<std::string> environment_names();

}  // namespace tide::net
