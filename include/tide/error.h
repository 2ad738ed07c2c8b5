// The one exception of Tide's set-up code: what failed, where, and what to do about it.
// Thrown while things are set up, caught at the C or dispatcher edge; progress paths do not throw.
#pragma once

#include <stdexcept>
#include <string>

namespace tide {

class Error : public std::runtime_error {
 public:
  // what: "cannot map the landing slots of rank 3: Permission denied".
  // remedy: what the reader can do, "run all ranks in one container"; may be empty.
  explicit Error(const std::string& what, const std::string& remedy = {})
      : std::runtime_error(remedy.empty() ? what : what + "; " + remedy) {}
};

}  // namespace tide
