// Completion queues: rings in the fabric, so that a peer can complete our receives while we are
// busy, and completion channels.
#pragma once

#include <infiniband/verbs.h>

#include "tests/softverbs/fabric.h"

namespace softverbs {

struct CompletionChannel {
  ibv_comp_channel channel;
  int writer;
};

struct CompletionQueue {
  ibv_cq cq;
  Membership* fabric;
  CompletionQueueEntry* entry;
  uint32_t index;
  uint64_t serial;  // never used again, unlike the index
  // Events handed to the program, to be acknowledged before the queue goes.
  uint32_t completion_events = 0, async_events = 0;

  static CompletionQueue* from(ibv_cq* cq) { return reinterpret_cast<CompletionQueue*>(cq); }
};

// Appends to a completion queue of any process. `solicited`: wakes a waiter of solicited events.
void push_completion(Membership& fabric, uint32_t index, const Completion& completion,
                     bool solicited);
// Drops what a queue pair has left there, as destroying one does.
void remove_completions(CompletionQueue* queue, uint32_t number);

int poll_cq(ibv_cq* cq, int count, ibv_wc* completions);
int req_notify_cq(ibv_cq* cq, int solicited_only);

}  // namespace softverbs
