// An option that takes one of a few names; a wrong one is answered with all of them.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace tide::cli {

template <typename T>
CLI::Option* add_choice(CLI::App& command, const std::string& option, T* value,
                        const std::map<std::string, T>& names, const std::string& help) {
  std::vector<std::string> all;
  std::string current;
  for (const auto& [name, meaning] : names) {
    all.push_back(name);
    if (meaning == *value) current = name;
  }
  return command
      .add_option_function<std::string>(
          option, [value, names](const std::string& name) { *value = names.at(name); }, help)
      ->check(CLI::IsMember(all))
      ->default_str(current);
}

}  // namespace tide::cli
