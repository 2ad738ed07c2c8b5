// See errors.h.
#include "plugin/profile/errors.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tide::profile {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), Errors::kShown); ++i) {
    text += (i == 0 ? "" : "\n") + lines[i];
  }
  if (lines.size() > Errors::kShown) {
    text += "\nand " + std::to_string(lines.size() - Errors::kShown) + " more";
  }
  return text;
}

}  // namespace

Errors::Errors(std::vector<std::string> lines) : Error(joined(lines)), lines_(std::move(lines)) {}

std::string Errors::brief() const {
  if (lines_.size() == 1) return lines_.front();
  return lines_.front() + " (and " + std::to_string(lines_.size() - 1) +
         " more: `tide profile check` and `tide profile show` list them)";
}

std::string shown(std::string_view text) {
  constexpr size_t kLongest = 60;
  const bool cut = text.size() > kLongest;
  if (cut) {
    size_t length = kLongest;
    // Not in the middle of a character: UTF-8 continues with bytes 10xxxxxx.
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
    text = text.substr(0, length);
  }
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      char escaped[5];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", byte);
      result += escaped;
    } else {
      result += c;
    }
  }
  return cut ? result + "..." : result;
}

}  // namespace tide::profile
