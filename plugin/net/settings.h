// The net plugin's part of the settings. Names, defaults, ranges and meaning are in the table of
// plugin/profile; here is only where each value goes.
#pragma once

#include <cstdint>
#include <string>

#include "plugin/profile/profile.h"

namespace tide::net {

enum class Flush : int64_t { kAuto = 0, kAlways = 1, kNever = 2 };

// Of a choice, its place in the table's list.
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
  int64_t pacing = 0;  // 0 off, 1 head
  int64_t pacing_peers = 0;
  int64_t pacing_head_bytes = 0;
};

Settings settings_of(const profile::Profile& profile);

// The profile of this process, with the variables that are the plugin's. Throws tide::Error with
// one line: what is wrong first, and how much more.
profile::Profile load_profile(const profile::Lookup& lookup, const profile::Machine& machine);

}  // namespace tide::net
