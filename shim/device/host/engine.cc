// See engine.h. Order of looking in a wait: what is complete, then what peers report, then who is
// dead, then the clock: a peer that did its part and left is no error.
#include "shim/device/host/engine.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

#include "include/tide/error.h"
#include "shim/device/host/copy.h"
#include "shim/device/host/sum.h"

namespace tide::device::host {
namespace {

// How often a waiting rank looks for dead peers.
constexpr std::chrono::milliseconds kLookEvery{20};

// The message that carries a segment's descriptor.
struct SegmentMessage {
  uint64_t segment;
  uint64_t bytes;
};

std::string seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(time.count()) / 1000.0);
  return text;
}

bool inside(uint64_t begin, uint64_t bytes, uint64_t limit) {
  return begin <= limit && bytes <= limit - begin;
}

}  // namespace

// What run() knows of the exchange it is at.
struct Engine::Turn {
  const Job& job;
  std::vector<bool> pushed;  // and the peer was told
  Clock::time_point look_at;

  std::span<const Push> pushes_to(int peer) const {
    auto [first, last] = std::ranges::equal_range(job.exchange.pushes, peer, {}, &Push::peer);
    return {first, last};
  }
};

Engine::Engine(int rank, std::vector<Peer> peers)
    : rank_(rank), peers_(std::move(peers)), segments_(peers_.size()) {}

Trouble Engine::trouble(FailureKind kind, int culprit, std::chrono::milliseconds waited) const {
  const Peer& peer = peers_[culprit];
  const std::string pid = " (pid " + std::to_string(peer.pid) + ")";
  Trouble result{{kind, culprit, waited}, peer.name};
  switch (kind) {
    case FailureKind::kGone:
      result.reason += pid + " is gone";
      break;
    case FailureKind::kAbsent:
      result.reason += " did not arrive within " + seconds(waited);
      break;
    case FailureKind::kLocal:
      result.reason += pid + " could not go on; its own error says why";
      break;
    case FailureKind::kNone:
    case FailureKind::kInvalid:
      result.reason += pid + " wrote what cannot be into the memory of its peers";
      break;
  }
  return result;
}

Trouble Engine::invalid(int culprit, const std::string& reason) const {
  return {{FailureKind::kInvalid, culprit, {}}, peers_[culprit].name + " " + reason};
}

std::optional<Trouble> Engine::grant(Job& job, SlotPool::Entry& entry) const {
  const Slot& landing = job.exchange.landing;
  for (; entry.sent_to < size(); ++entry.sent_to) {
    if (entry.sent_to == rank_) continue;
    const Peer& peer = peers_[entry.sent_to];
    SegmentMessage message{landing.segment, entry.memory.mapping->bytes()};
    if (peer.socket.send(std::as_bytes(std::span(&message, 1)), entry.memory.fd.get())) continue;
    if (errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED) continue;  // run() names it
    return Trouble{
        {FailureKind::kLocal, rank_, {}},
        "cannot hand the memory of a landing slot to " + peer.name + ": " + std::strerror(errno)};
  }
  entry.memory.fd.reset();
  for (int q = 0; q < size(); ++q) {
    if (q == rank_) continue;
    Grant& grant = peers_[q].block.from(rank_).grants[job.sequence % kGrants];
    grant.segment.store(landing.segment, std::memory_order_relaxed);
    grant.offset.store(landing.offset, std::memory_order_relaxed);
    grant.bytes.store(landing.bytes, std::memory_order_relaxed);
    grant.sequence.store(job.sequence, std::memory_order_release);
    peers_[q].block.ring();
  }
  job.granted = true;
  return std::nullopt;
}

std::shared_ptr<Mapping> Engine::peer_segment(int peer, uint64_t segment) {
  auto& known = segments_[peer];
  for (;;) {
    if (auto found = known.find(segment); found != known.end()) return found->second;
    // A descriptor is sent before the grant that needs it.
    SegmentMessage message{};
    auto fd = peers_[peer].socket.receive(std::as_writable_bytes(std::span(&message, 1)));
    if (!fd) return nullptr;
    known.emplace(message.segment, map_memory(fd->get(), message.bytes));
  }
}

std::optional<Trouble> Engine::push(Turn& turn, int peer) {
  const Job& job = turn.job;
  const std::span<const Push> pushes = turn.pushes_to(peer);
  if (std::ranges::any_of(pushes, [](const Push& p) { return p.bytes > 0; })) {
    const Grant& grant = peers_[rank_].block.from(peer).grants[job.sequence % kGrants];
    const uint64_t sequence = grant.sequence.load(std::memory_order_acquire);
    if (sequence > job.sequence) return invalid(peer, "granted memory for a later exchange");
    if (sequence != job.sequence) return std::nullopt;
    const uint64_t offset = grant.offset.load(std::memory_order_relaxed);
    const uint64_t bytes = grant.bytes.load(std::memory_order_relaxed);
    std::shared_ptr<Mapping> mapping;
    try {
      mapping = peer_segment(peer, grant.segment.load(std::memory_order_relaxed));
    } catch (const Error& error) {
      return Trouble{{FailureKind::kLocal, rank_, {}},
                     "cannot map the memory of " + peers_[peer].name + ": " + error.what()};
    }
    if (mapping == nullptr) {
      return invalid(peer,
                     "granted memory whose descriptor did not come (it was not sent, or the "
                     "limit of open files is reached: ulimit -n)");
    }
    if (!inside(offset, bytes, mapping->bytes())) {
      return invalid(peer, "granted " + std::to_string(bytes) + " bytes at " +
                               std::to_string(offset) + " of a segment of " +
                               std::to_string(mapping->bytes()));
    }
    for (const Push& p : pushes) {
      if (!inside(p.to, p.bytes, bytes)) {
        return invalid(peer, "granted " + std::to_string(bytes) + " bytes, and " +
                                 peers_[rank_].name + " has " + std::to_string(p.bytes) +
                                 " for byte " + std::to_string(p.to) + " of them: they disagree");
      }
    }
    for (const Push& p : pushes) {
      copy(mapping->data() + offset + p.to, p.from, p.bytes, p.bytes >= kStreamFrom);
      bytes_pushed_.fetch_add(p.bytes, std::memory_order_relaxed);
    }
    stream_fence();
  }
  peers_[peer].block.from(rank_).arrived.store(job.sequence, std::memory_order_release);
  peers_[peer].block.ring();
  turn.pushed[peer] = true;
  return std::nullopt;
}

bool Engine::missing(const Turn& turn, int peer) const {
  if (peer == rank_) return false;
  const uint64_t arrived = peers_[rank_].block.from(peer).arrived.load(std::memory_order_acquire);
  return !turn.pushed[peer] || arrived < turn.job.sequence;
}

std::optional<Trouble> Engine::check_arrivals(const Turn& turn) const {
  for (int q = 0; q < size(); ++q) {
    const uint64_t arrived = peers_[rank_].block.from(q).arrived.load(std::memory_order_relaxed);
    // No peer can finish the next exchange without this rank.
    if (q != rank_ && arrived > turn.job.sequence + 1) {
      return invalid(q, "says it finished an exchange that has not begun");
    }
  }
  return std::nullopt;
}

std::optional<Trouble> Engine::reported() const {
  for (int q = 0; q < size(); ++q) {
    if (q == rank_) continue;
    const uint64_t record = peers_[rank_].block.from(q).failure.load(std::memory_order_acquire);
    if (record == 0) continue;
    const Failure failure = Failure::decoded(record, size());
    if (failure.kind == FailureKind::kNone) return trouble(FailureKind::kInvalid, q);
    Trouble told = trouble(failure.kind, failure.culprit, failure.waited);
    if (failure.kind == FailureKind::kLocal) {
      // Who hears it from another peer reads it there.
      const std::string why = peers_[rank_].block.from(q).reported_reason();
      if (!why.empty()) {
        told.reason = peers_[failure.culprit].name + " (pid " +
                      std::to_string(peers_[failure.culprit].pid) + ") could not go on: " + why;
        told.relayed = why;
      }
    }
    return told;
  }
  return std::nullopt;
}

std::vector<int> Engine::hung_up() const {
  std::vector<pollfd> watched;
  for (const Peer& peer : peers_) watched.push_back({peer.socket.get(), 0, 0});  // own: -1, ignored
  std::vector<int> result;
  if (poll(watched.data(), watched.size(), 0) <= 0) return result;
  for (int q = 0; q < size(); ++q) {
    if ((watched[q].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) result.push_back(q);
  }
  return result;
}

std::optional<Trouble> Engine::look_for_trouble(Turn& turn) const {
  if (auto found = reported()) return found;
  const auto now = Clock::now();
  if (now >= turn.look_at) {
    turn.look_at = now + kLookEvery;
    for (int q : hung_up()) {
      // What it wrote before it died is visible now: a report of another's death goes first, and
      // what it finished counts.
      if (auto found = reported()) return found;
      const Inbox& inbox = peers_[rank_].block.from(q);
      const bool granted = inbox.grants[turn.job.sequence % kGrants].sequence.load(
                               std::memory_order_acquire) == turn.job.sequence;
      const bool arrived = inbox.arrived.load(std::memory_order_acquire) >= turn.job.sequence;
      if (!arrived || !(turn.pushed[q] || granted)) return trouble(FailureKind::kGone, q);
    }
  }
  if (now >= turn.job.deadline) {
    for (int q = 0; q < size(); ++q) {
      if (missing(turn, q)) return trouble(FailureKind::kAbsent, q, turn.job.timeout);
    }
  }
  return std::nullopt;
}

std::optional<Trouble> Engine::run(const Job& job, const std::atomic<bool>& halted) {
  Turn turn{job, std::vector<bool>(peers_.size(), false), Clock::now() + kLookEvery};
  bool own_copied = false;
  const BlockView& own = peers_[rank_].block;
  for (;;) {
    const uint32_t ticket = own.ticket();
    if (halted.load(std::memory_order_relaxed)) {
      return Trouble{{}, "the team was closed before it was complete"};
    }
    bool moved = false;
    for (int k = 1; k < size(); ++k) {
      const int q = (rank_ + k) % size();
      if (turn.pushed[q]) continue;
      if (auto found = push(turn, q)) return found;
      moved |= turn.pushed[q];
    }
    if (moved) continue;  // pushing took time: the next grant may be there
    if (!own_copied) {
      for (const Push& p : turn.pushes_to(rank_)) {
        copy(job.exchange.landing.data + p.to, p.from, p.bytes, p.bytes >= kStreamFrom);
        bytes_pushed_.fetch_add(p.bytes, std::memory_order_relaxed);
      }
      own_copied = true;
      continue;
    }
    if (auto found = check_arrivals(turn)) return found;
    bool complete = true;
    for (int q = 0; q < size(); ++q) complete &= !missing(turn, q);
    if (complete) break;
    if (auto found = look_for_trouble(turn)) return found;
    own.wait(ticket, std::min<std::chrono::nanoseconds>(kLookEvery, job.deadline - Clock::now()));
  }
  add_up(job);
  stream_fence();
  return std::nullopt;
}

void Engine::add_up(const Job& job) const {
  const Sum& sum = job.exchange.sum;
  auto* output = static_cast<std::byte*>(sum.output);
  std::vector<const std::byte*> sources;
  for (const SumRun& run : sum.runs) {
    if (run.count == 0) continue;
    const auto* own = static_cast<const std::byte*>(run.own);
    auto place = [&](int p) {
      return job.exchange.landing.data + static_cast<uint64_t>(p) * sum.place_bytes + run.landing;
    };
    sources.clear();
    if (sum.sources < 0) {
      for (int q = 0; q < size(); ++q) sources.push_back(q == rank_ ? own : place(q));
    } else {
      if (own != nullptr) sources.push_back(own);
      for (int p = 0; p < sum.sources; ++p) sources.push_back(place(p));
    }
    host::sum(sum.in, sources, sum.out, sum.factor, run.count, output + run.out * size_of(sum.out));
  }
  for (const auto& [first, count] : sum.zeros) {
    if (count > 0) std::memset(output + first * size_of(sum.out), 0, count * size_of(sum.out));
  }
}

void Engine::tell(const Failure& failure, const std::string& reason) const {
  for (int q = 0; q < size(); ++q) {
    if (q == rank_) continue;
    peers_[q].block.from(rank_).report(failure, reason);
    peers_[q].block.ring();
  }
}

}  // namespace tide::device::host
