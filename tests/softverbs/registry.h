// The verbs objects of this process, so that the steward finds whom news is for.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <unordered_map>

#include "tests/softverbs/layout.h"

namespace softverbs {

struct Context;
struct CompletionQueue;
struct SharedReceiveQueue;
struct QueuePair;

struct Registry {
  std::mutex lock;
  std::set<Context*> contexts;
  std::unordered_map<uint32_t, CompletionQueue*> completion_queues;  // by index in the fabric
  std::unordered_map<uint32_t, SharedReceiveQueue*> shared_receive_queues;
  std::unordered_map<uint32_t, QueuePair*> queue_pairs;  // by number
};
Registry& registry();

// An internal record: a peer has moved this queue pair to the error state; its send queue is to be
// flushed here. Above all values of ibv_event_type.
constexpr uint32_t kPeerBrokeQueuePair = 1000;

// Called by the steward.
void dispatch_async(const AsyncRecord& record);
void dispatch_completions();

}  // namespace softverbs
