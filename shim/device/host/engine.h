// One rank's part of an exchange: grant, push, wait for what arrives, sum. Everything that is read
// from a peer is checked before it is used, and every wait ends when a peer dies, when one reports
// a failure, or at the deadline.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shim/device/completion.h"
#include "shim/device/device.h"
#include "shim/device/host/bootstrap.h"
#include "shim/device/host/slots.h"

namespace tide::device::host {

struct Job : Completion {
  Exchange exchange;  // pushes sorted by peer
  uint64_t sequence = 0;
  std::chrono::milliseconds timeout{0};
  Clock::time_point deadline;
  bool granted = false;
};

// Why an exchange ended early.
struct Trouble {
  Failure failure;
  std::string reason;     // "rank 2 (pid 1234) is gone"
  std::string relayed{};  // what the culprit itself said, to be passed on
};

class Engine {
 public:
  Engine(int rank, std::vector<Peer> peers);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Sends the slot's descriptor to the peers that lack it, then publishes the grant. Trouble when a
  // descriptor cannot be sent; may be called again. One caller at a time.
  std::optional<Trouble> grant(Job& job, SlotPool::Entry& entry) const;

  // The worker's part; the grant is out. Returns early, with any text, once `halted`.
  std::optional<Trouble> run(const Job& job, const std::atomic<bool>& halted);

  // Tells every peer, once. `reason`: of a failure of this rank's own.
  void tell(const Failure& failure, const std::string& reason) const;
  // Any thread: makes run() look at `halted`.
  void interrupt() const { peers_[rank_].block.ring(); }

  uint64_t bytes_pushed() const { return bytes_pushed_.load(std::memory_order_relaxed); }

 private:
  struct Turn;

  std::optional<Trouble> push(Turn& turn, int peer);
  std::optional<Trouble> check_arrivals(const Turn& turn) const;
  std::optional<Trouble> look_for_trouble(Turn& turn) const;
  std::optional<Trouble> reported() const;
  bool missing(const Turn& turn, int peer) const;
  std::vector<int> hung_up() const;
  std::shared_ptr<Mapping> peer_segment(int peer, uint64_t segment);
  void add_up(const Job& job) const;
  Trouble trouble(FailureKind kind, int culprit, std::chrono::milliseconds waited = {}) const;
  Trouble invalid(int culprit, const std::string& reason) const;

  const int rank_;
  const std::vector<Peer> peers_;
  std::vector<std::map<uint64_t, std::shared_ptr<Mapping>>> segments_;  // of each peer
  std::atomic<uint64_t> bytes_pushed_{0};
};

}  // namespace tide::device::host
