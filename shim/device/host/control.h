// The control block of a rank: the words in shared memory through which the ranks of a team tell
// each other what they granted and what they finished. Peers are not trusted: who reads a value
// checks its bounds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tide::device::host {

// A landing slot that a peer may write for the exchange `sequence`. `sequence` is stored last.
struct Grant {
  std::atomic<uint64_t> sequence{0};
  std::atomic<uint64_t> segment{0};
  std::atomic<uint64_t> offset{0};
  std::atomic<uint64_t> bytes{0};
};

// A rank is at most one exchange ahead of a peer (each waits for all at its end), so two grants
// never overwrite one that is still to be read.
constexpr uint64_t kGrants = 2;

// Why a team failed, as one rank tells the others.
enum class FailureKind : uint8_t {
  kNone,
  kGone,     // the culprit's process ended
  kAbsent,   // the culprit did not arrive within `waited`
  kInvalid,  // what the culprit wrote cannot be
  kLocal,    // the culprit met an error of its own
};

struct Failure {
  FailureKind kind = FailureKind::kNone;
  int culprit = 0;  // team rank
  std::chrono::milliseconds waited{0};

  uint64_t encoded() const;
  // The kind is kNone for a value that no rank of a team of `size` writes.
  static Failure decoded(uint64_t value, int size);
};

// Of what a rank says about a failure of its own, the end included.
constexpr size_t kReasonBytes = 512;

// What one peer tells the owner of the block. Only that peer writes it.
struct alignas(64) Inbox {
  Grant grants[kGrants];             // grant s at s % kGrants
  std::atomic<uint64_t> arrived{0};  // all its pushes of exchanges up to this one have landed
  std::atomic<uint64_t> failure{0};  // Failure::encoded, stored after `reason`
  char reason[kReasonBytes] = {};    // of a failure kLocal, in the words of its culprit

  // Peer, once: `text` is cut where it is too long.
  void report(const Failure& kind, const std::string& text);
  // Owner, when `failure` is set. Printable, whatever the peer wrote.
  std::string reported_reason() const;
};

// A zeroed memory is a valid Block.
struct alignas(64) Block {
  std::atomic<uint32_t> wake{0};      // futex; grows with every change that the owner may wait for
  std::atomic<uint32_t> sleeping{0};  // the owner is in the kernel
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

constexpr uint64_t block_bytes(int size) {
  return sizeof(Block) + static_cast<uint64_t>(size) * sizeof(Inbox);
}

// A view of a mapped block.
class BlockView {
 public:
  BlockView() = default;
  explicit BlockView(std::byte* data) : data_(data) {}
  Block& head() const { return *reinterpret_cast<Block*>(data_); }
  Inbox& from(int peer) const { return reinterpret_cast<Inbox*>(data_ + sizeof(Block))[peer]; }

  // Peer: something in the block changed.
  void ring() const;
  // Owner: the value to hand to wait(), read before looking at what the block says.
  uint32_t ticket() const { return head().wake.load(std::memory_order_acquire); }
  // Owner: returns when the block was rung after `ticket`, at the latest after `limit`, or for no
  // reason. Spins some microseconds first.
  void wait(uint32_t ticket, std::chrono::nanoseconds limit) const;

 private:
  std::byte* data_ = nullptr;
};

}  // namespace tide::device::host
