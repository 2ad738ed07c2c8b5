// Texts to values and back, by the row of the table. Texts come from profiles and from variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "plugin/profile/key.h"

namespace tide::profile {

// kChoice: the place in the list. kInteger: the number. kSize: bytes. kDuration: nanoseconds. kText
// and kList: the text.
struct Parsed {
  int64_t number = 0;
  std::string text;
  bool operator==(const Parsed&) const = default;
};

// Nothing where the text is not a value of this key.
std::optional<Parsed> parse(const Key& key, std::string_view text);

// The same value as one would write it: "8MiB", "head", "200ms".
std::string format(const Key& key, const Parsed& value);

// "one of off, head", "1 to 16 (count)", "4KiB to 1GiB", "a duration of 1ms to 1440min, such as
// ...".
std::string allowed(const Key& key);

}  // namespace tide::profile
