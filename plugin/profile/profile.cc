// See profile.h.
#include "plugin/profile/profile.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "include/tide/nearest.h"
#include "plugin/profile/errors.h"

namespace tide::profile {
namespace {

// TIDE_ variables that are no settings of a job: which profile, and tools' own.
constexpr std::string_view kOtherVariables[] = {kProfileVariable, kDirectoryVariable, "TIDE_PYTHON",
                                                "TIDE_PLAN_LIBRARY"};

struct FromVariable {
  std::string name;
  std::string value;             // as it was given
  std::optional<Parsed> parsed;  // nothing: it is wrong
};

// NCCL takes its numbers as C does: 0x6a, 0152.
std::optional<Parsed> parse_as_nccl(const Key& key, const std::string& text) {
  if (key.type != Type::kInteger) return parse(key, text);
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(text.c_str(), &end, 0);
  if (text.empty() || *end != '\0' || errno != 0) return std::nullopt;
  return parse(key, std::to_string(number));
}

std::optional<FromVariable> from_variables(const Key& key, const Lookup& lookup) {
  std::string name(key.variable);
  if (auto value = lookup(name)) {
    auto parsed = parse(key, *value);
    return FromVariable{std::move(name), std::move(*value), std::move(parsed)};
  }
  if (key.fallback.empty()) return std::nullopt;
  name = key.fallback;
  if (auto value = lookup(name)) {
    auto parsed = parse_as_nccl(key, *value);
    return FromVariable{std::move(name), std::move(*value), std::move(parsed)};
  }
  return std::nullopt;
}

}  // namespace

const Value& Profile::value(std::string_view key) const {
  const int place = find_key(key);
  if (place < 0) throw std::logic_error("no setting is named " + std::string(key));
  return values_[static_cast<size_t>(place)];
}

Profile resolve(const Chosen& chosen, const Lookup& lookup,
                std::span<const std::string_view> sections) {
  Profile profile;
  const Source built_in{Source::Kind::kBuiltIn, "built-in"};
  profile.reason_ = chosen.reason;
  profile.rules_source_ = profile.wave_source_ = built_in;
  const auto at_line = [&](int line) {
    return Source{Source::Kind::kFile, chosen.file->path + ":" + std::to_string(line)};
  };
  if (chosen.file) {
    profile.name_ = chosen.file->name;
    profile.path_ = chosen.file->path;
    profile.description_ = chosen.file->description;
    profile.tuner_ = chosen.file->tuner;
    if (chosen.file->rules_line > 0) profile.rules_source_ = at_line(chosen.file->rules_line);
    if (profile.tuner_.wave) profile.wave_source_ = at_line(profile.tuner_.wave->line);
  }

  std::vector<std::string> errors;
  for (size_t i = 0; i < keys().size(); ++i) {
    const Key& key = keys()[i];
    Value& value = profile.values_.emplace_back();
    value.source = built_in;
    if (key.absent.empty()) {
      value.present = true;
      value.parsed = parse(key, key.standard).value();
    }
    if (chosen.file && chosen.file->settings[i]) {
      value = {true, chosen.file->settings[i]->value, at_line(chosen.file->settings[i]->line)};
    }
    if (!sections.empty() &&
        std::find(sections.begin(), sections.end(), section_of(key.name)) == sections.end()) {
      continue;
    }
    if (auto given = from_variables(key, lookup)) {
      if (given->parsed) {
        value = {true, std::move(*given->parsed), {Source::Kind::kVariable, given->name}};
      } else {
        std::string line =
            given->name + " is \"" + shown(given->value) + "\"; allowed: " + allowed(key);
        // NCCL's variables stand in for several keys.
        if (std::find(errors.begin(), errors.end(), line) == errors.end()) {
          errors.push_back(std::move(line));
        }
      }
    }
  }
  if (!errors.empty()) throw Errors(std::move(errors));
  return profile;
}

Profile load_profile(const Lookup& lookup, std::span<const std::string_view> sections,
                     const Machine& machine) {
  return resolve(choose_profile(lookup, machine), lookup, sections);
}

std::vector<std::string> unknown_variables(std::span<const std::string> names) {
  std::vector<std::string_view> known(std::begin(kOtherVariables), std::end(kOtherVariables));
  for (const Key& key : keys()) known.push_back(key.variable);
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    if (!name.starts_with("TIDE_")) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    lines.push_back(name + " is not a variable of Tide; the nearest is " +
                    std::string(nearest(name, known)));
  }
  return lines;
}

std::vector<std::string> unknown_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return unknown_variables(names);
}

}  // namespace tide::profile
