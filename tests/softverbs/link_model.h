// The wire: when the bytes that one port sends arrive at another.
#pragma once

#include <cstdint>

#include "tests/softverbs/layout.h"
#include "tests/softverbs/settings.h"

namespace softverbs {

class LinkModel {
 public:
  explicit LinkModel(const Settings& settings);

  // Without SOFTVERBS_LINK everything arrives when it is sent.
  bool active() const { return bytes_per_ns_ > 0; }
  uint64_t latency_ns() const { return latency_ns_; }
  // How much of a message one turn sends; the queue pairs of a device take turns.
  uint64_t piece_bytes() const { return piece_bytes_; }
  // Occupies both ports for these bytes and returns when the last one arrives. Ports are shared by
  // processes, so that several senders to one port share its rate.
  uint64_t arrival_ns(PortEntry& from, PortEntry& to, uint64_t bytes, uint64_t now) const;
  // When the next piece of this port should be handed over: not too far ahead of the wire.
  uint64_t next_turn_ns(const PortEntry& from, uint64_t now) const;

 private:
  double bytes_per_ns_;
  uint64_t latency_ns_;
  uint64_t piece_bytes_;
};

}  // namespace softverbs
