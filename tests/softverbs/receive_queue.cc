// Receive rings and shared receive queues.
#include "tests/softverbs/receive_queue.h"

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "tests/softverbs/device.h"
#include "tests/softverbs/export.h"
#include "tests/softverbs/memory_region.h"
#include "tests/softverbs/queue_pair.h"
#include "tests/softverbs/registry.h"

namespace softverbs {

bool make_ring(Membership& fabric, ReceiveRing* ring, uint32_t capacity, uint32_t max_sge) {
  ring->capacity = std::max(capacity, 1u);
  ring->max_sge = max_sge;
  ring->limit = 0;
  ring->head.store(0);
  ring->tail.store(0);
  ring->ring = fabric.allocate(ring->capacity * sizeof(PostedReceive));
  if (ring->ring == 0) errno = ENOMEM;
  return ring->ring != 0;
}

int post_receives(Membership& fabric, ReceiveRing* ring, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  std::lock_guard hold(ring->lock);
  auto* entries = fabric.at<PostedReceive>(ring->ring);
  for (; wr != nullptr; wr = wr->next) {
    uint64_t tail = ring->tail.load();
    bool full = tail - ring->head.load() == ring->capacity;
    if (full || wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > ring->max_sge) {
      *bad = wr;
      return full ? ENOMEM : EINVAL;
    }
    PostedReceive& entry = entries[tail % ring->capacity];
    entry.wr_id = wr->wr_id;
    entry.num_sge = static_cast<uint32_t>(wr->num_sge);
    std::copy(wr->sg_list, wr->sg_list + wr->num_sge, entry.sge);
    ring->tail.store(tail + 1);
  }
  return 0;
}

bool take_receive(Membership& fabric, ReceiveRing* ring, PostedReceive* receive,
                  bool* below_limit) {
  std::lock_guard hold(ring->lock);
  uint64_t head = ring->head.load();
  if (head == ring->tail.load()) return false;
  *receive = fabric.at<PostedReceive>(ring->ring)[head % ring->capacity];
  ring->head.store(head + 1);
  *below_limit = ring->limit != 0 && ring->tail.load() - head - 1 < ring->limit;
  if (*below_limit) ring->limit = 0;
  return true;
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  auto* queue = SharedReceiveQueue::from(srq);
  return post_receives(*queue->fabric, &queue->entry->receives, wr, bad);
}

}  // namespace softverbs

using namespace softverbs;

SOFTVERBS_EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) {
  auto* domain = ProtectionDomain::from(pd);
  Membership& fabric = *domain->fabric;
  const ibv_srq_attr& asked = attributes->attr;
  if (asked.max_wr == 0 || asked.max_wr > kMaxQueueDepth || asked.max_sge > kMaxSge) {
    errno = EINVAL;
    return nullptr;
  }
  uint32_t index = 0;
  {
    std::lock_guard hold(fabric->lock);
    while (index < kSharedReceiveQueues && fabric->shared_receive_queues[index].used) ++index;
    if (index == kSharedReceiveQueues) {
      errno = ENOMEM;
      return nullptr;
    }
    fabric->shared_receive_queues[index].used = true;
    fabric->shared_receive_queues[index].owner = fabric.slot();
  }
  SharedReceiveQueueEntry* entry = &fabric->shared_receive_queues[index];
  if (!entry->initialised) {
    entry->receives.lock.init();
    entry->initialised = true;
  }
  entry->pd = domain->number;
  if (!make_ring(fabric, &entry->receives, asked.max_wr, std::max(asked.max_sge, 1u))) {
    std::lock_guard hold(fabric->lock);
    entry->used = false;
    return nullptr;
  }
  auto* queue = new SharedReceiveQueue{};
  queue->srq.context = pd->context;
  queue->srq.srq_context = attributes->srq_context;
  queue->srq.pd = pd;
  queue->srq.handle = index;
  pthread_mutex_init(&queue->srq.mutex, nullptr);
  pthread_cond_init(&queue->srq.cond, nullptr);
  queue->fabric = &fabric;
  queue->entry = entry;
  queue->index = index;
  std::lock_guard hold(registry().lock);
  registry().shared_receive_queues[index] = queue;
  return &queue->srq;
}

SOFTVERBS_EXPORT int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attributes, int mask) {
  if (mask != IBV_SRQ_LIMIT) return mask & IBV_SRQ_MAX_WR ? EOPNOTSUPP : EINVAL;
  ReceiveRing& ring = SharedReceiveQueue::from(srq)->entry->receives;
  std::lock_guard hold(ring.lock);
  if (attributes->srq_limit > ring.capacity) return EINVAL;
  ring.limit = attributes->srq_limit;
  return 0;
}

SOFTVERBS_EXPORT int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attributes) {
  ReceiveRing& ring = SharedReceiveQueue::from(srq)->entry->receives;
  std::lock_guard hold(ring.lock);
  *attributes = {ring.capacity, ring.max_sge, ring.limit};
  return 0;
}

SOFTVERBS_EXPORT int ibv_destroy_srq(ibv_srq* srq) {
  auto* queue = SharedReceiveQueue::from(srq);
  uint32_t async_events;
  {
    std::lock_guard hold(registry().lock);
    for (auto& [number, pair] : registry().queue_pairs) {
      if (pair->ex.qp_base.srq == srq) return EBUSY;
    }
    registry().shared_receive_queues.erase(queue->index);
    async_events = queue->async_events;
  }
  pthread_mutex_lock(&srq->mutex);
  while (srq->events_completed != async_events) pthread_cond_wait(&srq->cond, &srq->mutex);
  pthread_mutex_unlock(&srq->mutex);
  release_ring(*queue->fabric, &queue->entry->receives);
  {
    std::lock_guard hold((*queue->fabric)->lock);
    queue->entry->used = false;
  }
  pthread_mutex_destroy(&srq->mutex);
  pthread_cond_destroy(&srq->cond);
  delete queue;
  return 0;
}
