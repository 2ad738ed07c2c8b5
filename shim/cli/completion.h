// The tree of subcommands as data, and what is written from it: shell completions and the manual
// page.
#pragma once

#include <string>
#include <vector>

namespace tide::cli {

struct OptionEntry {
  std::vector<std::string> names;  // "-q", "--quiet"; a positional: its one name
  bool positional = false;
  bool takes_value = false;
  std::string value;                 // what the help calls it, "TEXT"
  std::string standard;              // default, as shown; may be empty
  std::vector<std::string> choices;  // empty: anything
  std::string description;
};

struct CommandEntry {
  std::string path;  // "tide plan search"
  std::string name;  // "search"
  std::string description, footer;
  std::vector<OptionEntry> options;
  std::vector<CommandEntry> children;
};

// root and all that are below it, each after its parent.
std::vector<const CommandEntry*> flattened(const CommandEntry& root);

std::string bash_completion(const CommandEntry& root);
std::string zsh_completion(const CommandEntry& root);
std::string fish_completion(const CommandEntry& root);
std::string manual_page(const CommandEntry& root);

}  // namespace tide::cli
