// Which profile a process takes: TIDE_PROFILE, else the installed one for this machine, else none.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plugin/profile/file.h"
#include "plugin/profile/machine.h"

namespace tide::profile {

// What a variable is set to, or nothing.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;
Lookup environment();

// TIDE_PROFILE_DIR, else beside Tide: <prefix>/share/tide/configs as installed, configs/ of
// the source tree as built; empty: there is none. Throws Errors where the variable names no
// directory.
std::string profile_directory(const Lookup& lookup);

// Names of the profiles in a directory, sorted, without ".yaml".
std::vector<std::string> profile_names(const std::string& directory);

// A value with a slash or that ends in .yaml is a path, everything else a name in the directory.
// Throws Errors where there is no such profile, or it is wrong.
ProfileFile find_profile(const std::string& name_or_path, const std::string& directory);

// How many of its conditions a machine fulfils, 0 if not all. A machine without GPU fulfils none.
int fulfils(const Machine& machine, const Match& match);

struct Chosen {
  std::optional<ProfileFile> file;
  std::string
      reason;  // in words: "TIDE_PROFILE", "this machine: ...", "..., and no profile is for it"
};

// The same answer on every rank with the same variables, directory and machine. Of several profiles
// for the machine the one with most conditions; where there is no single one, none.
// Throws Errors: TIDE_PROFILE is wrong, or a profile that might be the one.
Chosen choose_profile(const Lookup& lookup, const Machine& machine);

}  // namespace tide::profile
