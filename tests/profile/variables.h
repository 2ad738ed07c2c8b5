// Variables of a test, instead of the environment's.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "plugin/profile/find.h"

namespace tide::profile {

using Variables = std::map<std::string, std::string>;

inline Lookup from(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

}  // namespace tide::profile
