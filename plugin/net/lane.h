// A lane: one queue pair of a connection, with a record of everything sent on it that is not known
// to have arrived. RC delivers in order and each piece of a message consumes one receive at the
// peer, so when a lane breaks the peer's count of receives tells exactly which pieces arrived.
// Grants and acknowledgements may arrive twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/net/device_list.h"
#include "plugin/verbs/queue_pair.h"

namespace tide::net {

struct SendRecord {
  enum class Kind : uint8_t { kPiece, kGrant, kAcknowledgement };
  Kind kind = Kind::kPiece;
  uint32_t index = 0;      // kPiece: the request; kGrant: how many slots
  uint32_t immediate = 0;  // kPiece
  uint64_t offset = 0;     // kPiece: into the message; kGrant: the slots, 8 bits each
  uint32_t length = 0;     // kPiece
  bool watched = false;    // kGrant: its slots wait until this write is known to be over

  uint32_t slot(uint32_t i) const { return offset >> 8 * i & 0xff; }  // kGrant
};

// What a work request's 64 bits say: which lane, in which life, which way, which one.
struct WorkId {
  static constexpr uint32_t kFlushLane = 255;  // the loopback pairs of a receiver

  uint32_t lane = 0;        // 8 bits
  bool receive = false;     // 1 bit
  uint32_t generation = 0;  // 24 bits
  uint32_t index = 0;       // 24 bits: low bits of the send number, or the receive buffer

  uint64_t pack() const {
    return uint64_t{index & 0xffffff} | uint64_t{lane} << 24 | uint64_t{receive} << 32 |
           uint64_t{generation & 0xffffff} << 40;
  }
  static WorkId unpack(uint64_t bits) {
    return {static_cast<uint32_t>(bits >> 24 & 0xff), (bits >> 32 & 1) != 0,
            static_cast<uint32_t>(bits >> 40), static_cast<uint32_t>(bits & 0xffffff)};
  }
};

// kUp carries messages. The rest is repair, see recovery.h; in kDraining, kProbing and kAnswered
// completions still arrive, in the others the queue pair is nobody's or the supervisor's.
enum class LaneState : uint8_t { kUp, kDraining, kReported, kDown, kOffered, kProbing, kAnswered };
const char* to_string(LaneState state);

struct LaneShape {
  verbs::PairShape pair;
  uint32_t receive_bytes = 0;  // of a receive buffer; 0: receives carry immediates only
  uint32_t signal_every = 1;   // completions asked for; a later one vouches for earlier sends
};

class Lane {
 public:
  Lane(uint32_t number, const Port* port, int local_device, int remote_device, bool data,
       bool control, const LaneShape& shape);

  // The queue pair's life begins: no record, no receive. Not thread-safe.
  void adopt(verbs::QueuePair pair, uint32_t new_generation);
  verbs::QueuePair make_pair(ibv_cq* completions, bool use_ece) const;

  bool has_room() const { return posted_ - retired_ < shape_.pair.send_depth; }
  uint64_t posted() const { return posted_; }
  uint64_t retired() const { return retired_; }
  // Posts `work` (id and signalling are filled in here) and remembers `record`. 0 or an errno.
  int post(ibv_send_wr* work, const SendRecord& record);
  // An empty write: acknowledged if the path works. It consumes no receive at the peer, so it is
  // not among the sends that are counted. 0 or an errno.
  int post_probe();
  // The oldest record; only if posted() != retired().
  const SendRecord& oldest() const { return records_[retired_ % records_.size()]; }
  void retire_oldest() { ++retired_; }
  // Sends up to the one with these low 24 bits have completed: how many of ours that is.
  uint64_t completed_by(uint32_t index) const;

  // Posts the receives that are idle, if there are enough to be worth a call. 0 or an errno.
  int refill(bool all);
  void receive_completed(uint32_t buffer);
  uint8_t* receive_buffer(uint32_t buffer) {
    return buffers_.data() + buffer * shape_.receive_bytes;
  }
  uint32_t receives_outstanding() const { return outstanding_; }

  const uint32_t number;
  const Port* const port;
  const int local_device;   // of the connection's devices
  const int remote_device;  // of the peer's
  const bool data;
  const bool control;

  std::atomic<LaneState> state{LaneState::kUp};  // written in turns, read by both threads
  uint32_t generation = 0;
  uint64_t received = 0;  // in this generation
  std::string trouble;    // why it broke; for messages
  verbs::QueuePair pair;

  // The receive buffers' key; set once when they are registered.
  uint32_t receive_key = 0;
  std::vector<uint8_t>& buffers() { return buffers_; }

 private:
  const LaneShape shape_;
  std::vector<SendRecord> records_;
  uint64_t posted_ = 0;
  uint64_t retired_ = 0;
  std::vector<uint8_t> buffers_;
  std::vector<uint32_t> idle_;  // receive buffers that are not posted
  uint32_t outstanding_ = 0;
};

}  // namespace tide::net
