// What a fork must not share. A child that kept a socket would hide the end of this process from
// its peers, who wait for the stream to close; one that kept a device would keep its queue pairs
// answering.
#pragma once

#include <functional>

namespace tide::verbs {

// Makes a descriptor with `open` (which returns it, or -1; no other thread forks meanwhile) and
// closes it in every child forked from now on.
int open_private(const std::function<int()>& open);
// Closes it here. Nothing in a child, where the number may be another's by now.
void close_private(int fd);

// The same of a descriptor that a library opened and will close.
class PrivateDescriptor {
 public:
  explicit PrivateDescriptor(int fd);  // negative: none
  ~PrivateDescriptor();
  PrivateDescriptor(const PrivateDescriptor&) = delete;
  PrivateDescriptor& operator=(const PrivateDescriptor&) = delete;

 private:
  const int fd_;
};

}  // namespace tide::verbs
