// poll and the failure words of the control blocks.
#include "shim/device/cuda/lookout.h"

#include <poll.h>

#include <cstdio>

namespace tide::device::cuda {
namespace {

std::string with_pid(const host::Peer& peer) {
  return peer.name + " (pid " + std::to_string(peer.pid) + ")";
}

}  // namespace

std::string seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(time.count()) / 1000.0);
  return text;
}

Trouble Lookout::gone(int q) const {
  return {{FailureKind::kGone, q, {}}, with_pid(peers_[q]) + " is gone"};
}

Trouble Lookout::absent(int q, std::chrono::milliseconds waited) const {
  return {{FailureKind::kAbsent, q, waited},
          peers_[q].name + " did not arrive within " + seconds(waited)};
}

Trouble Lookout::local(const std::string& reason) const {
  return {{FailureKind::kLocal, rank_, {}}, reason};
}

std::optional<Trouble> Lookout::reported() const {
  for (int q = 0; q < size(); ++q) {
    if (q == rank_) continue;
    const uint64_t record = peers_[rank_].block.from(q).failure.load(std::memory_order_acquire);
    if (record == 0) continue;
    const Failure failure = Failure::decoded(record, size());
    switch (failure.kind) {
      case FailureKind::kGone:
        return gone(failure.culprit);
      case FailureKind::kAbsent:
        return absent(failure.culprit, failure.waited);
      case FailureKind::kLocal: {
        // Who hears it from another peer reads it there.
        const std::string why = peers_[rank_].block.from(q).reported_reason();
        return Trouble{failure, with_pid(peers_[failure.culprit]) + " could not go on: " + why,
                       why};
      }
      case FailureKind::kNone:
      case FailureKind::kInvalid:
        return Trouble{{FailureKind::kInvalid, q, {}},
                       with_pid(peers_[q]) + " wrote what cannot be into the memory of its peers"};
    }
  }
  return std::nullopt;
}

std::vector<int> Lookout::hung_up() const {
  std::vector<pollfd> watched;
  for (const host::Peer& peer : peers_) watched.push_back({peer.socket.get(), 0, 0});  // own: -1
  std::vector<int> result;
  if (poll(watched.data(), watched.size(), 0) <= 0) return result;
  for (int q = 0; q < size(); ++q) {
    if ((watched[q].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) result.push_back(q);
  }
  return result;
}

void Lookout::tell(const Trouble& trouble) const {
  const bool own = trouble.failure.kind == FailureKind::kLocal && trouble.failure.culprit == rank_;
  for (int q = 0; q < size(); ++q) {
    if (q == rank_) continue;
    peers_[q].block.from(rank_).report(trouble.failure, own ? trouble.reason : trouble.relayed);
  }
}

}  // namespace tide::device::cuda
