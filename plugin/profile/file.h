// One profile, read and checked, not yet laid over the defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/profile/rules.h"
#include "plugin/profile/value.h"

namespace tide::profile {

// The machines that a profile is for; what is absent, any machine fulfils.
struct Match {
  std::vector<std::string> gpus;  // one of them is part of the GPU's name
  std::optional<int64_t> gpus_per_node;
  std::optional<int64_t> link_gbps;
};

struct ProfileFile {
  struct Setting {
    Parsed value;
    int line = 0;  // from 1
  };

  std::string path;
  std::string name;  // the file's, without directory and ".yaml"
  std::string description;
  std::optional<Match> match;                    // absent: for no machine by itself
  std::vector<std::optional<Setting>> settings;  // by place in keys()
  TunerRules tuner;
  int rules_line = 0;  // of tuner.rules; 0: there are none
};

// Throws Errors with everything that is wrong, in the order of the text.
ProfileFile read_profile(std::string_view text, const std::string& path);
// The same, and an error where the file cannot be read.
ProfileFile read_profile_file(const std::string& path);

}  // namespace tide::profile
