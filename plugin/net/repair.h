// How a broken lane is replaced: the steps of both ends, as a state machine without I/O.
//
//   connecting end                                  accepting end
//   up -> draining: pair to error, wait for its flushed receives (either end may begin)
//   reported: "down, I received n"      <------>    reported: "down, I received m"
//   both settle: what the other end did not receive travels again on another lane
//   down: new pair, "offer"              ------>    connects a new pair
//   connects, probes with an empty write <------    "answer", answered   (or "decline")
//   probe acknowledged: up, "ready"      ------>    up
//
// A step that fails or takes too long puts the connecting end back to down; it offers again, ever
// more slowly, as long as the connection lives.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "plugin/verbs/queue_pair.h"

namespace tide::net {

using Clock = std::chrono::steady_clock;

struct LaneRepair {
  bool pair_in_error = false;
  std::optional<uint64_t> peer_received;
  uint32_t next_generation = 1;
  Clock::time_point deadline = Clock::time_point::max();  // of the present step
  Clock::time_point next_offer = {};
  int attempts = 0;  // offers, made or heard, since the lane was last up
  verbs::QueuePair candidate;
  verbs::PortAddress local;  // of the candidate
};

struct RepairState {
  std::vector<LaneRepair> lanes;
  std::optional<Clock::time_point> dark_since;  // no lane is up
  std::optional<Clock::time_point> gone_since;  // the peer closed the stream
  bool said_bye = false;                        // it did so in order
};

// How long to wait before offer number `attempts`: 10 ms, doubling, at most 1 s.
inline Clock::duration offer_delay(int attempts) {
  return std::chrono::milliseconds(attempts >= 7 ? 1000 : 10 << attempts);
}

}  // namespace tide::net
