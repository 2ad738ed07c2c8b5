// Posted receives: the ring of a queue pair or of a shared receive queue, in the fabric.
#pragma once

#include <infiniband/verbs.h>

#include "tests/softverbs/fabric.h"

namespace softverbs {

struct SharedReceiveQueue {
  ibv_srq srq;
  Membership* fabric;
  SharedReceiveQueueEntry* entry;
  uint32_t index;
  uint32_t async_events = 0;
  static SharedReceiveQueue* from(ibv_srq* srq) {
    return reinterpret_cast<SharedReceiveQueue*>(srq);
  }
};

// False and errno ENOMEM when the arena is used up. The ring's lock is initialised once per table
// entry, not here.
bool make_ring(Membership& fabric, ReceiveRing* ring, uint32_t capacity, uint32_t max_sge);
// As ibv_post_recv: 0, EINVAL or ENOMEM, with the first bad request.
int post_receives(Membership& fabric, ReceiveRing* ring, ibv_recv_wr* wr, ibv_recv_wr** bad);
// Takes the oldest receive; false if there is none. `below_limit`: a shared receive queue has
// reached its limit by this one.
bool take_receive(Membership& fabric, ReceiveRing* ring, PostedReceive* receive, bool* below_limit);

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);

}  // namespace softverbs
