// The steward: one thread per process that answers joiners, carries news from shared memory to the
// descriptors the program polls, and copies for processes that may not do it themselves. It never
// waits for anything another process does.
#include <sys/prctl.h>

#include <cerrno>
#include <cstring>

#include "tests/softverbs/copy.h"
#include "tests/softverbs/fabric.h"
#include "tests/softverbs/registry.h"
#include "tests/softverbs/sockets.h"

namespace softverbs {

void Membership::serve_bounce() {
  BounceRequest& request = self().bounce;
  if (request.state.load() != 1) return;
  iovec part{request.bytes, request.length};
  bool ok = copy_within(request.write != 0, part, request.address);
  request.state.store(ok ? 2 : 3);
}

void Membership::run_steward() {
  prctl(PR_SET_NAME, "softverbs");
  Datagram datagram;
  for (;;) {
    if (!receive_datagram(socket_, &datagram)) {
      if (errno == EINTR) continue;
      return;
    }
    if (datagram.what == 'J') {
      send_descriptor(socket_, datagram, memory_);
      continue;
    }
    // Before looking: what is added from here on rings again.
    self().bell.store(0);
    serve_bounce();
    for (;;) {
      AsyncRecord record;
      {
        std::lock_guard hold(self().async_lock);
        if (self().async_head == self().async_tail) break;
        record = self().async[self().async_head % kAsyncRecords];
        ++self().async_head;
      }
      dispatch_async(record);
    }
    dispatch_completions();
  }
}

}  // namespace softverbs
