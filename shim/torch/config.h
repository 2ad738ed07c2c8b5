// The TIDE_ variables of the shim: one table, read once.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace tide::shim {

enum class Mode { kOn, kObserve, kOff };
enum class LogLevel { kError, kWarn, kInfo, kDebug };
enum class GatherChoice { kLayout, kCoalesced, kStock };
enum class ReduceChoice { kLayout, kStock };

struct Config {
  Mode mode = Mode::kOn;
  LogLevel log = LogLevel::kWarn;
  std::string report;  // path, %r stands for the rank; empty: none
  GatherChoice all_gather = GatherChoice::kLayout;
  ReduceChoice reduce_scatter = ReduceChoice::kLayout;
  std::optional<std::chrono::milliseconds> timeout;  // empty: the process group's
  std::chrono::milliseconds join_timeout{60000};
  int local_ranks = 0;  // 0: as the machine is
  bool cuda = false;

  // What must be equal on all ranks, as one text.
  std::string shared_settings() const;
};

// A variable of the environment, for the reference page and for the nearest-name help.
struct Variable {
  const char* name;
  const char* values;
  const char* fallback;
  const char* meaning;
};
const std::vector<Variable>& variables();

struct ConfigResult {
  Config config;
  std::vector<std::string> warnings;  // unknown TIDE_ variables
  std::string error;                  // a value that is not allowed; empty: none
};

// environment: "NAME=value" entries, as environ holds them.
ConfigResult read_config(const std::vector<std::string>& environment);

}  // namespace tide::shim
