// What a fork must not share: sockets that tell peers this rank is alive are closed in the child,
// and the child learns that it is one.
#pragma once

#include <cstdint>
#include <functional>

namespace tide::device::host {

// A number that changes in every forked child: a team made under another one belongs to a process
// that this one is not.
uint64_t fork_generation();

// Makes a descriptor with `open` (which returns it, or -1) and closes it in every child forked from
// now on: a child that kept a rank's socket would hide that rank's death from its peers.
int open_fork_private(const std::function<int()>& open);
void close_fork_private(int fd);

}  // namespace tide::device::host
