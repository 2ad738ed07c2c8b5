// The settings that hold in this process, and where each came from:
// built-in < profile < NCCL's variable, where a setting has one < Tide's variable.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/profile/file.h"
#include "plugin/profile/find.h"

namespace tide::profile {

struct Source {
  enum class Kind { kBuiltIn, kFile, kVariable };
  Kind kind = Kind::kBuiltIn;
  std::string where;  // "built-in", "PATH:LINE" or the variable's name
};

struct Value {
  bool present = false;  // false: the key has no default, and nothing set it
  Parsed parsed;
  Source source;
};

class Profile {
 public:
  const std::string& name() const { return name_; }      // "none" where there is no file
  const std::string& path() const { return path_; }      // empty likewise
  const std::string& reason() const { return reason_; }  // why this one: Chosen::reason
  const std::string& description() const { return description_; }

  // `key` is a name of the table.
  const Value& value(std::string_view key) const;
  bool present(std::string_view key) const { return value(key).present; }
  int64_t number(std::string_view key) const { return value(key).parsed.number; }
  const std::string& text(std::string_view key) const { return value(key).parsed.text; }

  const TunerRules& tuner() const { return tuner_; }
  const Source& rules_source() const { return rules_source_; }
  const Source& wave_source() const { return wave_source_; }

 private:
  friend Profile resolve(const Chosen&, const Lookup&, std::span<const std::string_view>);

  std::string name_ = "none";
  std::string path_;
  std::string reason_;
  std::string description_;
  std::vector<Value> values_;  // by place in keys()
  TunerRules tuner_;
  Source rules_source_;
  Source wave_source_;
};

// Lays variables over the profile over the defaults. Only variables of the given sections count
// and are checked; none given: all. Throws Errors with every variable that is wrong.
Profile resolve(const Chosen& chosen, const Lookup& lookup,
                std::span<const std::string_view> sections = {});

// The same for this machine: chooses the profile first.
Profile load_profile(const Lookup& lookup, std::span<const std::string_view> sections = {},
                     const Machine& machine = read_machine());

// A line for each TIDE_ variable among `names` that Tide does not know, with the nearest one that
// it does.
std::vector<std::string> unknown_variables(std::span<const std::string> names);
// Of this process.
std::vector<std::string> unknown_variables();

}  // namespace tide::profile
