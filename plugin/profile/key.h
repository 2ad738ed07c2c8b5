// Everything that can be set on Tide: one table of name, type, unit, default, range and meaning.
// Profiles are checked by it, TIDE_ variables override by it, and doc/configuration.md and
// configs/profile.schema.json are written from it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace tide::profile {

enum class Type {
  kChoice,    // one of a few names; off and on may be written false and true
  kInteger,   // decimal
  kSize,      // bytes: 262144, 256KiB, 8MiB, 1GiB
  kDuration,  // 50us, 200ms, 30s, 10min; kept in nanoseconds
  kText,
  kList,  // texts; in a variable, and in its value, separated by commas
};

// One row. In a profile the dots of the name are nesting.
struct Key {
  std::string_view name;  // "net.pacing"; in a list of maps, relative to its entry
  Type type;
  std::string_view standard = {};  // the default, as it would be written
  std::string_view absent = {};    // there is no default: what then holds, "the process group's"
  std::string_view unit = {};      // of a kInteger
  int64_t minimum = 0;             // kInteger; kSize bytes; kDuration ns; texts: characters
  int64_t maximum = 0;             // the same; texts have none
  std::span<const std::string_view> choices = {};
  std::string_view word = {};  // kInteger: this word is allowed besides, and means word_value
  int64_t word_value = 0;
  std::string_view variable = {};  // empty: none
  std::string_view fallback =
      {};  // NCCL's variable that counts where `variable` is unset, or empty
  std::string_view meaning;

  // Value as text (kText, kList) and not as a number.
  bool textual() const { return type == Type::kText || type == Type::kList; }
};

// The settings proper, section by section. Every one has a variable.
std::span<const Key> keys();
// Maps of a profile that are not settings: `match`, an entry of `tuner.rules`, `tuner.wave`, and an
// entry of `tuner.wave.gemms`. A row whose standard and absent are empty is required.
std::span<const Key> match_keys();
std::span<const Key> rule_keys();
std::span<const Key> wave_keys();
std::span<const Key> gemm_keys();

// What a section is about: "net" and so on, in the order of the table.
struct Section {
  std::string_view name;
  std::string_view meaning;
};
std::span<const Section> sections();
// The section that a dotted name is in: "net" of "net.pacing".
std::string_view section_of(std::string_view name);

// The place of a setting in keys(), or -1.
int find_key(std::string_view name);

// Variables that choose the profile and are not in the table.
constexpr std::string_view kProfileVariable = "TIDE_PROFILE";
constexpr std::string_view kDirectoryVariable = "TIDE_PROFILE_DIR";

}  // namespace tide::profile
