// The shim's part of the settings. Names, defaults, ranges and meaning are in the table of
// plugin/profile; here is only where each value goes. Read once.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugin/profile/machine.h"

namespace tide::shim {

// In the order of the table's choices.
enum class Mode { kOn, kObserve, kOff };
enum class LogLevel { kError, kWarn, kInfo, kDebug };
enum class GatherChoice { kLayout, kCoalesced, kStock };
enum class ReduceChoice { kLayout, kStock };
enum class Gradients { kInPlace, kSlotReuse };
enum class CudaChoice { kOff, kOn, kRails };
enum class MulticastChoice { kOff, kAuto, kReduce };
enum class RailPacing { kOff, kHead, kFull };  // a tide_rail_pacing
enum class Schedule { kAuto, kRing, kDoubling, kDoublingFar };

// Transfers between nodes: include/tide/rail.h.
struct RailConfig {
  std::string devices;    // form of NCCL_IB_HCA; empty: all
  std::string interface;  // form of NCCL_SOCKET_IFNAME; empty: by rule
  RailPacing pacing = RailPacing::kHead;
  uint64_t head_bytes = 0;
  Schedule schedule = Schedule::kAuto;
  int queue_pairs = 0;
  int core = -1;
  std::chrono::nanoseconds spin{0};
  std::chrono::milliseconds timeout{0};
  int traffic_class = -1;
  int control_traffic_class = -1;
  int service_level = 0;
};

struct Config {
  std::string profile = "none";  // its name
  Mode mode = Mode::kOn;
  LogLevel log = LogLevel::kWarn;
  std::string report;  // path, %r stands for the rank; empty: none
  std::chrono::milliseconds report_every{0};
  std::string trace;  // as report
  GatherChoice all_gather = GatherChoice::kLayout;
  ReduceChoice reduce_scatter = ReduceChoice::kLayout;
  Gradients gradients = Gradients::kInPlace;
  std::optional<std::chrono::milliseconds> timeout;  // empty: the process group's
  std::chrono::milliseconds join_timeout{0};
  int local_ranks = 0;  // 0: as the machine is
  CudaChoice cuda = CudaChoice::kOn;
  int sum_blocks = 0;                       // thread blocks of a reduce-scatter's sum on a GPU
  std::chrono::microseconds sum_launch{0};  // how long one launch of them may live
  MulticastChoice multicast = MulticastChoice::kOff;
  uint64_t multicast_bytes = 0;
  RailConfig rail;

  // What must be equal on all ranks, as one text.
  std::string shared_settings() const;
};

struct ConfigResult {
  Config config;                      // the defaults where there is an error
  std::string profile_reason;         // why this profile, or none
  std::vector<std::string> warnings;  // unknown TIDE_ variables, files that all ranks would write
  std::string error;                  // everything that is not allowed, a line each; empty: nothing
};

// environment: "NAME=value" entries, as environ holds them.
ConfigResult read_config(const std::vector<std::string>& environment,
                         const profile::Machine& machine = profile::read_machine());

}  // namespace tide::shim
