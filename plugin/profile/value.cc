// See value.h.
#include "plugin/profile/value.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <vector>

namespace tide::profile {
namespace {

struct Unit {
  std::string_view name;
  int64_t scale;
};
// Ascending; the first is the one that numbers are kept in.
constexpr Unit kSizeUnits[] = {
    {"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", int64_t{1} << 40}};
constexpr Unit kDurationUnits[] = {
    {"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}, {"min", 60'000'000'000}};

std::span<const Unit> units_of(Type type) {
  if (type == Type::kSize) return kSizeUnits;
  if (type == Type::kDuration) return kDurationUnits;
  return {};
}

// A decimal number at the start of `text`, which then begins behind it. No leading zeros: YAML 1.1
// takes them for octal.
std::optional<int64_t> take_number(std::string_view* text) {
  int64_t number = 0;
  const char* end = text->data() + text->size();
  const auto [rest, failed] = std::from_chars(text->data(), end, number);
  if (failed != std::errc()) return std::nullopt;
  const size_t length = static_cast<size_t>(rest - text->data());
  const size_t sign = text->front() == '-' ? 1 : 0;
  if (length > sign + 1 && (*text)[sign] == '0') return std::nullopt;
  text->remove_prefix(length);
  return number;
}

std::optional<int64_t> parse_number(const Key& key, std::string_view text) {
  if (!key.word.empty() && text == key.word) return key.word_value;
  const std::optional<int64_t> number = take_number(&text);
  if (!number) return std::nullopt;
  int64_t result = *number;
  if (key.type == Type::kInteger) {
    if (!text.empty()) return std::nullopt;
  } else {
    const auto units = units_of(key.type);
    const auto unit =
        std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == text; });
    // Zero is zero in any unit; other durations must name theirs.
    const bool bare_zero = result == 0 && text.empty();
    if (unit == units.end() && !bare_zero) return std::nullopt;
    if (!bare_zero && __builtin_mul_overflow(result, unit->scale, &result)) return std::nullopt;
  }
  if (result < key.minimum || result > key.maximum) return std::nullopt;
  return result;
}

std::optional<int64_t> parse_choice(const Key& key, std::string_view text) {
  const auto place = std::find(key.choices.begin(), key.choices.end(), text);
  if (place == key.choices.end()) return std::nullopt;
  return place - key.choices.begin();
}

std::string with_unit(std::span<const Unit> units, int64_t number) {
  if (number == 0) return "0";
  const Unit* best = &units.front();
  for (const Unit& unit : units) {
    if (number % unit.scale == 0) best = &unit;
  }
  return std::to_string(number / best->scale) + std::string(best->name);
}

std::string joined(std::span<const std::string_view> names) {
  std::string text;
  for (std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

}  // namespace

std::optional<Parsed> parse(const Key& key, std::string_view text) {
  if (key.textual()) {
    if (static_cast<int64_t>(text.size()) < key.minimum) return std::nullopt;
    return Parsed{.number = 0, .text = std::string(text)};
  }
  const auto number = key.type == Type::kChoice ? parse_choice(key, text) : parse_number(key, text);
  if (!number) return std::nullopt;
  return Parsed{.number = *number, .text = {}};
}

std::string format(const Key& key, const Parsed& value) {
  if (key.textual()) return value.text;
  if (key.type == Type::kChoice) {
    return std::string(key.choices[static_cast<size_t>(value.number)]);
  }
  if (!key.word.empty() && value.number == key.word_value) return std::string(key.word);
  if (key.type == Type::kInteger) return std::to_string(value.number);
  return with_unit(units_of(key.type), value.number);
}

std::string allowed(const Key& key) {
  const auto range = [&](auto write) { return write(key.minimum) + " to " + write(key.maximum); };
  const auto written = [&](int64_t number) { return with_unit(units_of(key.type), number); };
  switch (key.type) {
    case Type::kChoice:
      return "one of " + joined(key.choices);
    case Type::kInteger:
      return range([](int64_t number) { return std::to_string(number); }) + " (" +
             std::string(key.unit) + ")" +
             (key.word.empty() ? "" : ", or " + std::string(key.word));
    case Type::kSize:
      return range(written) + ", a size such as 262144, 256KiB or 8MiB";
    case Type::kDuration:
      return range(written) + ", a duration such as 50us, 200ms, 30s or 10min";
    case Type::kText:
      return key.minimum > 0 ? "a text that is not empty" : "a text";
    case Type::kList:
      break;
  }
  if (!key.choices.empty()) return "a list of " + joined(key.choices);
  return key.minimum > 0 ? "a text or a list of texts that are not empty"
                         : "a text or a list of texts";
}

}  // namespace tide::profile
