// Completion queues and channels.
#include "tests/softverbs/completion_queue.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "tests/softverbs/device.h"
#include "tests/softverbs/export.h"
#include "tests/softverbs/queue_pair.h"
#include "tests/softverbs/registry.h"

namespace softverbs {
namespace {

std::atomic<uint64_t> g_next_serial{1};

// True if an event is to be written for this completion; disarms.
bool fires(CompletionQueueEntry* entry, const Completion& completion, bool solicited) {
  if (entry->armed == 0) return false;
  if (entry->armed == 2 && !solicited && completion.wc.status == IBV_WC_SUCCESS) return false;
  entry->armed = 0;
  return true;
}

// False if the channel's buffer is full: the event stays due.
bool write_event(CompletionQueue* queue) {
  auto* channel = reinterpret_cast<CompletionChannel*>(queue->cq.channel);
  if (channel == nullptr) return true;
  return send(channel->writer, &queue->serial, sizeof queue->serial, MSG_DONTWAIT | MSG_NOSIGNAL) >
             0 ||
         errno != EAGAIN;
}

}  // namespace

void push_completion(Membership& fabric, uint32_t index, const Completion& completion,
                     bool solicited) {
  CompletionQueueEntry* entry = &fabric->completion_queues[index];
  bool wake = false, overrun = false;
  {
    std::lock_guard hold(entry->lock);
    uint64_t tail = entry->tail.load();
    if (tail - entry->head.load() == entry->capacity) {
      overrun = !entry->overrun;
      entry->overrun = true;
    } else {
      fabric.at<Completion>(entry->ring)[tail % entry->capacity] = completion;
      entry->tail.store(tail + 1);
      wake = fires(entry, completion, solicited);
      if (wake) entry->event_due.store(1);
    }
  }
  if (overrun) fabric.post_async(entry->owner, IBV_EVENT_CQ_ERR, index);
  if (wake) fabric.ring(entry->owner);
}

void dispatch_completions() {
  Registry& objects = registry();
  std::lock_guard hold(objects.lock);
  for (auto& [index, queue] : objects.completion_queues) {
    if (queue->entry->event_due.exchange(0) == 1 && !write_event(queue)) {
      queue->entry->event_due.store(1);
    }
  }
}

void remove_completions(CompletionQueue* queue, uint32_t number) {
  CompletionQueueEntry* entry = queue->entry;
  std::lock_guard hold(entry->lock);
  auto* ring = queue->fabric->at<Completion>(entry->ring);
  uint64_t keep = entry->head.load(), tail = entry->tail.load();
  for (uint64_t i = keep; i < tail; ++i) {
    const Completion& completion = ring[i % entry->capacity];
    if (completion.wc.qp_num != number) ring[keep++ % entry->capacity] = completion;
  }
  entry->tail.store(keep);
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* completions) {
  auto* queue = CompletionQueue::from(cq);
  CompletionQueueEntry* entry = queue->entry;
  if (entry->head.load(std::memory_order_relaxed) == entry->tail.load(std::memory_order_acquire)) {
    return 0;
  }
  std::lock_guard hold(entry->lock);
  auto* ring = queue->fabric->at<Completion>(entry->ring);
  uint64_t head = entry->head.load(), tail = entry->tail.load();
  int polled = 0;
  for (; polled < count && head < tail; ++polled, ++head) {
    const Completion& completion = ring[head % entry->capacity];
    completions[polled] = completion.wc;
    if (completion.queue_pair != 0) {
      reinterpret_cast<QueuePair*>(completion.queue_pair)->reclaimed.store(completion.reclaim);
    }
  }
  entry->head.store(head);
  return polled;
}

int req_notify_cq(ibv_cq* cq, int solicited_only) {
  CompletionQueueEntry* entry = CompletionQueue::from(cq)->entry;
  std::lock_guard hold(entry->lock);
  // A request for any completion is not narrowed by a later one for solicited ones only.
  if (entry->armed != 1) entry->armed = solicited_only ? 2 : 1;
  return 0;
}

}  // namespace softverbs

using namespace softverbs;

SOFTVERBS_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  int ends[2];
  if (!make_event_pair(ends)) return nullptr;
  return &(new CompletionChannel{{context, ends[0], 0}, ends[1]})->channel;
}

SOFTVERBS_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  auto* mine = reinterpret_cast<CompletionChannel*>(channel);
  std::lock_guard hold(registry().lock);
  if (channel->refcnt != 0) return EBUSY;
  shutdown(mine->writer, SHUT_RDWR);
  close(channel->fd);
  close(mine->writer);
  delete mine;
  return 0;
}

SOFTVERBS_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context,
                                       ibv_comp_channel* channel, int comp_vector) {
  Context* owner = Context::from(context);
  if (cqe <= 0 || cqe > static_cast<int>(kMaxCqe) || comp_vector < 0 ||
      comp_vector >= context->num_comp_vectors) {
    errno = EINVAL;
    return nullptr;
  }
  Membership& fabric = owner->fabric;
  uint64_t ring = fabric.allocate(static_cast<uint64_t>(cqe) * sizeof(Completion));
  uint32_t index = 0;
  CompletionQueueEntry* entry = nullptr;
  if (ring != 0) {
    std::lock_guard hold(fabric->lock);
    while (index < kCompletionQueues && fabric->completion_queues[index].used) ++index;
    if (index < kCompletionQueues) {
      entry = &fabric->completion_queues[index];
      entry->used = true;
      entry->owner = fabric.slot();
    }
  }
  if (entry == nullptr) {
    fabric.release(ring, static_cast<uint64_t>(cqe) * sizeof(Completion));
    errno = ENOMEM;
    return nullptr;
  }
  if (!entry->initialised) {
    entry->lock.init();
    entry->initialised = true;
  }
  entry->overrun = false;
  entry->armed = 0;
  entry->capacity = static_cast<uint32_t>(cqe);
  entry->ring = ring;
  entry->head.store(0);
  entry->tail.store(0);
  entry->event_due.store(0);

  auto* queue = new CompletionQueue{};
  queue->cq.context = context;
  queue->cq.channel = channel;
  queue->cq.cq_context = cq_context;
  queue->cq.handle = index;
  queue->cq.cqe = cqe;
  pthread_mutex_init(&queue->cq.mutex, nullptr);
  pthread_cond_init(&queue->cq.cond, nullptr);
  queue->fabric = &fabric;
  queue->entry = entry;
  queue->index = index;
  queue->serial = g_next_serial.fetch_add(1);
  std::lock_guard hold(registry().lock);
  if (channel != nullptr) ++channel->refcnt;
  registry().completion_queues[index] = queue;
  return &queue->cq;
}

SOFTVERBS_EXPORT int ibv_resize_cq(ibv_cq*, int) { return EOPNOTSUPP; }

SOFTVERBS_EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  auto* queue = CompletionQueue::from(cq);
  uint32_t completion_events, async_events;
  {
    std::lock_guard hold(registry().lock);
    for (auto& [number, pair] : registry().queue_pairs) {
      if (pair->ex.qp_base.send_cq == cq || pair->ex.qp_base.recv_cq == cq) return EBUSY;
    }
    registry().completion_queues.erase(queue->index);
    if (cq->channel != nullptr) --cq->channel->refcnt;
    completion_events = queue->completion_events;
    async_events = queue->async_events;
  }
  // As with hardware: events handed out must be acknowledged first.
  pthread_mutex_lock(&cq->mutex);
  while (cq->comp_events_completed != completion_events ||
         cq->async_events_completed != async_events) {
    pthread_cond_wait(&cq->cond, &cq->mutex);
  }
  pthread_mutex_unlock(&cq->mutex);
  release_completion_queue(*queue->fabric, queue->entry);
  pthread_mutex_destroy(&cq->mutex);
  pthread_cond_destroy(&cq->cond);
  delete queue;
  return 0;
}

SOFTVERBS_EXPORT int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  for (;;) {
    uint64_t serial;
    ssize_t got = recv(channel->fd, &serial, sizeof serial, 0);
    if (got != sizeof serial) {
      if (got >= 0) errno = EBADF;
      return -1;
    }
    // An event of a queue that is gone by now is none.
    std::lock_guard hold(registry().lock);
    for (auto& [index, queue] : registry().completion_queues) {
      if (queue->serial != serial) continue;
      ++queue->completion_events;
      *cq = &queue->cq;
      *cq_context = queue->cq.cq_context;
      return 0;
    }
  }
}

SOFTVERBS_EXPORT void ibv_ack_cq_events(ibv_cq* cq, unsigned int count) {
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += count;
  pthread_cond_signal(&cq->cond);
  pthread_mutex_unlock(&cq->mutex);
}
