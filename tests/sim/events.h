// Events on virtual time, earliest first; at the same time in the order in which they were added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "plugin/pacing/rounds_wire.h"

namespace tide::sim {

struct Event {
  enum class Kind : uint8_t {
    // Of the fabric.
    kArrive,   // a write reaches the NIC of `node`
    kLand,     // it is in memory
    kBreak,    // the connection of `node` and `peer`
    kRebuild,  //
    kDie,      // `node`
    kWake,     // the progress thread of `node` takes the next item of its inbox
    // What a progress thread meets; these go through its inbox.
    kBegin,         // a moment to begin the next exchange
    kSend,          // hand in the next send of exchange `exchange`
    kTick,          //
    kImmediate,     // `value`
    kSent,          // ticket `value`
    kGranted,       // exchange number `value`
    kMessage,       // `message`
    kDisconnected,  //
    kReconnected,   // with `epoch`
    kLost,          //
  };
  Kind kind = Kind::kTick;
  int node = 0;
  int peer = -1;
  int queue_pair = -1;
  uint32_t epoch = 0;  // of the connection it travels on
  uint64_t value = 0;
  bool repeated = false;  // it has come before
  // A write.
  int exchange = -1;  // index
  int round = -1;
  uint64_t local = 0, remote = 0, bytes = 0;
  uint64_t ticket = 0;
  uint64_t left_at = 0;  // when its last byte left the sender
  std::optional<uint32_t> immediate = {};
  std::array<std::byte, pacing::kMessageBytes> message = {};
};

class EventQueue {
 public:
  void add(uint64_t at, const Event& event) {
    uint32_t index = 0;
    if (free_.empty()) {
      index = static_cast<uint32_t>(events_.size());
      events_.push_back(event);
    } else {
      index = free_.back();
      free_.pop_back();
      events_[index] = event;
    }
    queue_.push({at, order_++, index});
  }
  bool empty() const { return queue_.empty(); }
  // The time and the event.
  std::pair<uint64_t, Event> take() {
    const Entry entry = queue_.top();
    queue_.pop();
    free_.push_back(entry.index);
    return {entry.at, events_[entry.index]};
  }

 private:
  struct Entry {
    uint64_t at;
    uint64_t order;
    uint32_t index;
    bool operator<(const Entry& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  std::priority_queue<Entry> queue_;
  std::vector<Event> events_;
  std::vector<uint32_t> free_;
  uint64_t order_ = 0;
};

}  // namespace tide::sim
