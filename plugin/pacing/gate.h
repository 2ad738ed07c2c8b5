// Pacing of one NIC's messages: how many peers may have heads under way that are not acknowledged.
// Pure: no I/O and no clock. A message is a head and, if it is longer, a tail; the receiver
// acknowledges when the whole head is there, so the next peer's head leaves while the tail still
// flows. Only posted messages count, and every posted message was granted by its receiver, so each
// counted head is acknowledged whatever the gate does: it cannot deadlock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace tide::pacing {

// Shared by all senders of a NIC, from any thread; never waits.
class HeadGate {
 public:
  static constexpr uint32_t kPeers = 4096;

  // limit: peers with unacknowledged heads at a time.
  explicit HeadGate(uint32_t limit) : limit_(limit), heads_(new std::atomic<uint32_t>[kPeers]()) {}

  // May a head leave for `peer`? True counts it. A peer that has heads under way is never refused.
  bool try_enter(uint32_t peer);
  // `heads` of `peer` were acknowledged, or will never be because its connection ended.
  void leave(uint32_t peer, uint32_t heads);
  // Peers with heads under way.
  uint32_t active() const { return active_.load(std::memory_order_relaxed); }

 private:
  uint32_t limit_;
  std::atomic<uint32_t> active_{0};
  std::unique_ptr<std::atomic<uint32_t>[]> heads_;
};

// One connection's account: heads sent against heads acknowledged. Acknowledgements carry the count
// since the connection began, so a lost, repeated or overtaken one mints nothing, and the epoch of
// the connection, so that one of an earlier connection is nothing at all.
class HeadAccount {
 public:
  explicit HeadAccount(uint32_t epoch) : epoch_(epoch) {}

  void sent() { ++sent_; }
  enum class Verdict { kCounted, kOld, kForged };
  struct Credit {
    Verdict verdict;
    uint32_t heads;  // newly acknowledged
  };
  // kForged: the count is ahead of what was sent.
  Credit acknowledge(uint32_t epoch, uint32_t count);
  uint32_t outstanding() const { return sent_ - acknowledged_; }

 private:
  uint32_t epoch_;
  uint32_t sent_ = 0;  // both wrap around
  uint32_t acknowledged_ = 0;
};

}  // namespace tide::pacing
