// The queue pairs to one node: those of data and one of control, of one generation. When any of
// them breaks all are given up, and a link of the next generation takes their place.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/rail/messages.h"
#include "plugin/verbs/device.h"
#include "plugin/verbs/queue_pair.h"

namespace tide::rail {

struct LinkShape {
  int queue_pairs = 1;          // of data
  uint32_t depth = 64;          // writes under way on each of them
  uint32_t receive_depth = 96;  // immediates that may come without a new receive
  uint32_t inline_bytes = 64;   // wanted for control messages

  // Completions that one link may have outstanding.
  uint32_t completions() const;
};

// Registered memory for the control messages of one node, both ways. It outlives the links.
struct ControlMemory {
  static constexpr uint32_t kDepth = 64;       // messages each way
  static constexpr uint32_t kPlaceBytes = 64;  // kControlBytes, on cache lines
  static constexpr size_t kBytes = size_t{2} * kDepth * kPlaceBytes;
  uint8_t* base = nullptr;
  uint32_t key = 0;
  uint8_t* send_place(uint32_t index) const { return base + index * kPlaceBytes; }
  uint8_t* receive_place(uint32_t index) const { return base + (kDepth + index) * kPlaceBytes; }
};

// What a work request's 64 bits say.
struct WorkId {
  int node = 0;             // 10 bits
  uint32_t queue_pair = 0;  // 5 bits; data 0.., control last
  bool receive = false;     // 1 bit
  uint32_t generation = 0;  // 24 bits
  uint32_t index = 0;       // 24 bits: low bits of the number of the send; the place of a receive

  uint64_t pack() const;
  static WorkId unpack(uint64_t bits);
};

struct RemoteWrite {
  uint64_t local = 0;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  uint64_t remote = 0;
  uint32_t bytes = 0;
  const uint32_t* immediate = nullptr;  // host order
  uint64_t ticket = 0;
};

class Link {
 public:
  // Queue pairs in state INIT. Throws tide::Error.
  Link(verbs::Device& device, int port, ibv_cq* completions, const LinkShape& shape,
       const ControlMemory& memory, int node, uint32_t generation, bool use_ece);

  std::vector<verbs::PairAddress> addresses() const;
  // To ready, with all receives posted. `peer` has one address for each queue pair.
  // Throws tide::Error.
  void connect(const verbs::PortAddress& local, const verbs::PortAddress& remote,
               std::span<const verbs::PairAddress> peer, const verbs::PairOptions& data,
               const verbs::PairOptions& control);

  // Each returns 0 or an errno.
  int write(int queue_pair, const RemoteWrite& write);
  int say(const Control& control);  // if can_say()
  bool can_say() const;

  // A send of `id` has completed, and so have those before it on its queue pair: calls
  // done(ticket) for each write among them.
  template <typename Done>
  void sends_completed(const WorkId& id, Done done);
  // A receive has completed. Data: nothing to read. Control: the message, until repost().
  std::span<const uint8_t> receive_completed(const WorkId& id, uint32_t bytes);
  // Puts receives back; 0 or an errno.
  int repost(const WorkId& id);

  // All work completes with a flush error; nothing more is sent, and nothing of the peer's is let
  // in.
  void to_error() noexcept;
  uint32_t receives_outstanding() const { return receives_outstanding_; }
  uint32_t generation() const { return generation_; }
  bool owns(const ibv_qp* pair) const;

 private:
  struct Queue {
    verbs::QueuePair pair;
    std::vector<uint64_t> tickets;  // of sends under way, a ring; control: unused
    uint32_t depth = 0;
    uint64_t posted = 0;
    uint64_t retired = 0;
    uint32_t idle_receives = 0;  // data
  };
  int post_receives(uint32_t queue_pair, uint32_t count);
  int post_control_receive(uint32_t place);
  Queue& control() { return queues_.back(); }
  const Queue& control() const { return queues_.back(); }

  const LinkShape shape_;
  const ControlMemory memory_;
  const int node_;
  const uint32_t generation_;
  std::vector<Queue> queues_;
  uint32_t receives_outstanding_ = 0;
};

template <typename Done>
void Link::sends_completed(const WorkId& id, Done done) {
  Queue& queue = queues_[id.queue_pair];
  const uint32_t ahead = (id.index - static_cast<uint32_t>(queue.retired)) & 0xffffff;
  if (ahead >= queue.posted - queue.retired) return;
  for (uint32_t i = 0; i <= ahead; ++i, ++queue.retired) {
    if (id.queue_pair + 1 < queues_.size()) done(queue.tickets[queue.retired % queue.depth]);
  }
}

}  // namespace tide::rail
