// What is wrong with a profile or with variables: all of it, a line each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "include/tide/error.h"

namespace tide::profile {

// what() is all lines, at most kShown of them. Every line names the place ("path:3:7: ..." or a
// variable), the value, and what is allowed.
class Errors : public Error {
 public:
  static constexpr size_t kShown = 20;

  explicit Errors(std::vector<std::string> lines);
  const std::vector<std::string>& lines() const { return lines_; }
  // For a log that takes one line: the first, and how many more there are.
  std::string brief() const;

 private:
  std::vector<std::string> lines_;
};

// A text of unknown origin as part of a message: control characters escaped, cut after 60 bytes.
std::string shown(std::string_view text);

}  // namespace tide::profile
