// The send engine of an opened device: one thread that moves what queue pairs have posted, in
// order within a queue pair, taking turns between them, and keeps the retransmission timers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "tests/softverbs/delivery.h"
#include "tests/softverbs/faults.h"
#include "tests/softverbs/link_model.h"
#include "tests/softverbs/queue_pair.h"

namespace softverbs {

struct Context;

class Engine {
 public:
  explicit Engine(Context& context);
  ~Engine();

  // The pair (its lock is held) has posted. Small messages to an idle wire go at once, in the
  // caller's thread: waking another one would take longer.
  void submit(QueuePair& pair);
  // Its peer broke it: flush. From the steward.
  void peer_broke(QueuePair& pair);
  // Nothing of the pair is touched any more once this returns. Its lock is not held.
  void forget(QueuePair& pair);

 private:
  enum class Kind { kTurn, kArrival, kAck, kFlush, kPort };
  struct Event {
    uint64_t due_ns;
    uint64_t order;  // of those due at one time
    Kind kind;
    QueuePair* pair;  // null for kPort
    uint32_t epoch;   // kArrival: of the pair when sent; kTurn: the pair's ticket
    Piece piece;
    bool down;  // kPort
    bool operator>(const Event& other) const {
      return due_ns != other.due_ns ? due_ns > other.due_ns : order > other.order;
    }
  };

  void run();
  void handle(const Event& event);
  void add(uint64_t due_ns, Kind kind, QueuePair* pair, uint32_t epoch, const Piece& piece = {},
           bool down = false);
  // The following run with the pair's lock held.
  void schedule(QueuePair& pair, uint64_t due_ns);
  bool send_now(QueuePair& pair);
  void judge(QueuePair& pair, WorkRequest& request);
  void turn(QueuePair& pair, uint32_t ticket, std::unique_lock<std::mutex>& hold);
  void arrive(QueuePair& pair, const Event& event, std::unique_lock<std::mutex>& hold);
  void acknowledge(QueuePair& pair, uint64_t position);
  void lost(QueuePair& pair, const Piece& piece);
  void not_ready(QueuePair& pair, const Piece& piece);
  void retry_at(QueuePair& pair, const Piece& piece, uint64_t wait_ns);

  Context& context_;
  LinkModel link_;
  Faults faults_;

  std::mutex lock_;
  std::condition_variable wake_;
  std::condition_variable handled_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::deque<std::pair<QueuePair*, uint32_t>> ready_;  // with their tickets
  QueuePair* handling_ = nullptr;
  uint64_t next_order_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace softverbs
