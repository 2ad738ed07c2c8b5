// What the collectives need from a device: landing slots that the ranks of one node can write into
// each other, and exchanges that push, wait for what arrives, and sum it. Two houses implement it:
// host (shared memory) and cuda (copy engines, and NVSwitch multicast on top of them).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shim/device/stage.h"

namespace tide::device {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16 };

constexpr uint64_t size_of(DType type) { return type == DType::kFloat32 ? 4 : 2; }

// Memory of this rank that every rank of its team can write. `data` is this rank's mapping of it;
// peers address it by (segment, offset). 256-byte aligned.
struct Slot {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint32_t segment = 0;
  uint64_t offset = 0;
};

// One contiguous run: `bytes` bytes at `from` (this rank's memory) go to byte `to` of the landing
// slot that team rank `peer` granted for the same exchange. `peer` may be this rank itself. The
// pushes of an exchange are made in any order: none reads what another writes.
struct Push {
  int peer = 0;
  const void* from = nullptr;
  uint64_t to = 0;
  uint64_t bytes = 0;
};

// One run of a sum, in elements: output[out, out + count) is the sum over the team's ranks q, in
// rank order, of `count` elements; those of this rank are at `own`, those of another rank q start
// at byte `landing` of place q, which begins at byte q * Sum::place_bytes of the landing slot.
struct SumRun {
  uint64_t out = 0;
  uint64_t count = 0;
  const void* own = nullptr;
  uint64_t landing = 0;
};

// output[i] = cast(factor * (((x_0 + x_1) + x_2) + ...)), all additions in fp32 and in rank order,
// one multiplication at the end (none when factor is 1): results repeat bit by bit.
struct Sum {
  DType in = DType::kFloat32;
  DType out = DType::kFloat32;
  void* output = nullptr;
  uint64_t place_bytes = 0;
  float factor = 1.0f;
  // Negative: the sources are the team's ranks, as SumRun says. Otherwise the runs of this sum add
  // `own`, where it is not null, and then places 0, 1, ..., sources - 1, whoever wrote them.
  int sources = -1;
  // The exchange is a reduce-scatter and nothing else: rank r pushes into place r of the slots of
  // the others, and nowhere else; slots hold a place of every rank. A device that was asked to
  // (CudaTeamOptions::multicast_sums) may then move less and add in another order. The same on all
  // ranks.
  bool reduce_scatter = false;
  std::vector<SumRun> runs;
  std::vector<std::pair<uint64_t, uint64_t>> zeros;  // (first element, count) of the padding
};

// One step all ranks of a team take together, in the same order on every rank. The landing slot is
// granted to the peers, the pushes are made as their grants arrive (first to rank + 1, then
// rank + 2, ...), and it is complete here when the pushes of all peers have landed and `sum`, if it
// has runs or zeros, is done. An exchange without a landing slot of its own grants none.
struct Exchange {
  std::string what;  // "all-gather of layers.3", named in errors
  Slot landing;
  std::vector<Push> pushes;
  Sum sum;
  std::chrono::milliseconds timeout{0};  // from start(); 0: the team's default
  // Owns the memory that pushes and runs read. Dropped in wait() or with the Pending, in the thread
  // that does so, never in a thread of the team. A Pending dropped before it is done does not
  // block: the memory is then let go in a later call of acquire(), start() or wait(), or with the
  // team.
  std::shared_ptr<void> keep;
};

class Pending {
 public:
  virtual ~Pending() = default;
  // Host: blocks until complete. CUDA: makes the current stream wait. Throws tide::Error naming the
  // exchange and the rank that died or stayed away; every later call throws the same.
  virtual void wait() = 0;
  // True once complete or failed; never blocks.
  virtual bool done() const = 0;
  // The error that wait() would throw; empty while running and after success.
  virtual std::string error() const = 0;
  // When it was complete or failed; the epoch where it is not yet, or where that is not known here
  // (CUDA).
  virtual std::chrono::steady_clock::time_point finished() const { return {}; }
};

struct TeamStats {
  uint64_t slot_bytes = 0;    // memory held for slots, free and in use
  uint64_t slots = 0;         // slots that exist
  uint64_t slots_in_use = 0;  // acquired and not yet released
  uint64_t bytes_pushed = 0;  // by this rank, own slot included
  uint64_t exchanges = 0;
};

// The ranks of one node that share landing memory. Thread-safe. A team that failed stays failed.
class Team {
 public:
  virtual ~Team() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // A slot of at least `bytes`, reused when one is free, else new. Throws tide::Error.
  virtual Slot acquire(uint64_t bytes) = 0;
  // A slot of at least `bytes` that is free already: no memory is added for it. The owner may write
  // it at once (CUDA: on the current stream). Nothing where there is none.
  virtual std::optional<Slot> acquire_free(uint64_t /*bytes*/) { return std::nullopt; }
  // The owner no longer reads the slot (CUDA: after what the current stream holds now). Called by
  // storage deleters: does not throw. A slot whose exchange failed is not used again.
  virtual void release(const Slot& slot) noexcept = 0;
  // Host: returns at once. CUDA: when all ranks have started it. Throws tide::Error when the team
  // has failed before.
  virtual std::shared_ptr<Pending> start(Exchange exchange) = 0;
  virtual TeamStats stats() const = 0;
  // The error of a failed team, else empty. What had come here before the call is right if it is
  // empty.
  virtual std::string error() const = 0;
  // Fails the team here, with `reason` as its error, and at its peers, which are told that this
  // rank could not go on: for what goes wrong beside the team. Nothing happens to a failed team.
  virtual void abort(const std::string& reason) noexcept = 0;
  // CUDA: `callback` is called once when the team fails, with the reason, on a thread of the team,
  // before what streams wait for is released: what they compute then must not leave this rank.
  // Host: never called, for nobody goes on there after a failure.
  virtual void on_failure(std::function<void(const std::string&)> /*callback*/) {}
  // Null where slots and tensors are host memory, which rails reach by themselves. Does not outlive
  // the team. Throws tide::Error.
  virtual std::unique_ptr<Stage> stage() { return nullptr; }
};

// How the ranks of a team find each other: each gives a short text and gets those of all, in rank
// order. Collective; throws tide::Error naming who stayed away.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual std::vector<std::string> exchange(const std::string& mine) = 0;
};

}  // namespace tide::device
