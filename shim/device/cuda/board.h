// The board of a rank: words in host memory that all ranks of the node map and that their streams
// read and write. Host memory, because a watchdog must be able to release waiting streams whatever
// the GPU does: a plain store of the CPU cannot be blocked by them, while anything enqueued can
// (streams share hardware channels, with CUDA_DEVICE_MAX_CONNECTIONS=1 all of them).
//
// An exchange waits for exact values, never for "at least": the word of exchange s is number
// s % kRing, and its value is code_of(s, landing slot). So streams may run exchanges in another
// order than they were enqueued, and nothing is pushed to a place that its owner did not grant for
// exactly this exchange.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "shim/device/cuda/memory.h"
#include "shim/device/cuda/parts.h"
#include "shim/device/cuda/slot_heap.h"
#include "shim/device/host/memory.h"

namespace tide::device::cuda {

// Exchanges whose words may be in use at a time. Exchange s starts on the GPU when s - kRing has
// ended there, so that all peers have read the words it uses again.
constexpr uint64_t kRing = 128;

// A value for the words of exchange `sequence`, never zero.
uint64_t code_of(uint64_t sequence, const Place& landing);

class Board {
 public:
  // New memory for a team of `size`. Both throw tide::Error.
  static host::SharedMemory create(int size);
  Board(std::shared_ptr<Context> context, std::shared_ptr<host::Mapping> memory, int size);

  // The owner's stream writes `sequence` when the exchange has ended.
  std::atomic<uint64_t>& done(uint64_t sequence) const;
  // Written by the stream of rank `from`: its landing slot may be written by the owner.
  std::atomic<uint64_t>& ready(int from, uint64_t sequence) const;
  // Written by the stream of rank `from`: its pushes into the owner's slot are complete, but for
  // those of `following` more parts of the exchange, less than kMostParts.
  std::atomic<uint64_t>& arrived(int from, uint64_t sequence, int following = 0) const;
  CUdeviceptr address_of(const std::atomic<uint64_t>& word) const;

  // Where exchange `sequence` lands on the owner.
  void publish(uint64_t sequence, const Place& landing) const;
  // Nothing when the owner has not come to this exchange, or is kRing further.
  std::optional<Place> published(uint64_t sequence) const;

 private:
  struct Choice;
  struct Inbox;
  struct Layout;

  Layout& layout() const;
  Inbox& inbox(int from) const;

  std::shared_ptr<host::Mapping> memory_;
  PinnedMapping pinned_;
  int size_;
};

}  // namespace tide::device::cuda
