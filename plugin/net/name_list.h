// NCCL's way to name devices and interfaces in a variable. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tide::net {

// "a,b:1": names by prefix, with an optional port; "^" in front excludes them, "=" wants the whole
// name; "^=" does both. An empty list matches everything.
class NameList {
 public:
  // Throws tide::Error for a port that is no number.
  explicit NameList(std::string_view text);
  // port 0: of an interface, which has none.
  bool matches(std::string_view name, int port = 0) const;
  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    std::string name;
    int port = -1;  // any
  };
  bool exclude_ = false;
  bool whole_ = false;
  std::vector<Entry> entries_;
};

// "3", or "mlx5_0=3,mlx5_1=5": the value for `device`, -1 where nothing is said.
// Throws tide::Error for anything else.
int index_for_device(std::string_view text, std::string_view device);

}  // namespace tide::net
