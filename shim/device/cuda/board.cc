// The layout of a board, and the mixing of codes.
#include "shim/device/cuda/board.h"

#include <string>

#include "include/tide/error.h"

namespace tide::device::cuda {

struct Board::Choice {
  std::atomic<uint64_t> sequence;  // stored last; 0 while the rest changes
  std::atomic<uint64_t> segment;
  std::atomic<uint64_t> offset;
  std::atomic<uint64_t> bytes;
};

// What one rank's streams write.
struct alignas(64) Board::Inbox {
  std::atomic<uint64_t> ready[kRing];
  std::atomic<uint64_t> arrived[kRing][kMostParts];
};

// A zeroed memory is a valid one; the inboxes of all ranks follow it.
struct alignas(64) Board::Layout {
  std::atomic<uint64_t> done[kRing];
  Choice choices[kRing];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

uint64_t code_of(uint64_t sequence, const Place& landing) {
  uint64_t code = 0;
  for (uint64_t part : {sequence, uint64_t{landing.segment}, landing.offset, landing.bytes}) {
    // The finaliser of MurmurHash3: every bit of the input moves every bit of the result.
    code ^= part + 0x9e3779b97f4a7c15;
    code = (code ^ code >> 33) * 0xff51afd7ed558ccd;
    code = (code ^ code >> 33) * 0xc4ceb9fe1a85ec53;
    code ^= code >> 33;
  }
  return code == 0 ? 1 : code;
}

host::SharedMemory Board::create(int size) {
  return host::create_memory(sizeof(Layout) + static_cast<uint64_t>(size) * sizeof(Inbox));
}

Board::Board(std::shared_ptr<Context> context, std::shared_ptr<host::Mapping> memory, int size)
    : memory_(memory), pinned_(std::move(context), std::move(memory)), size_(size) {
  if (memory_->bytes() < sizeof(Layout) + static_cast<uint64_t>(size_) * sizeof(Inbox)) {
    throw Error("the board of a peer has only " + std::to_string(memory_->bytes()) + " bytes");
  }
}

Board::Layout& Board::layout() const { return *reinterpret_cast<Layout*>(memory_->data()); }

Board::Inbox& Board::inbox(int from) const {
  return reinterpret_cast<Inbox*>(memory_->data() + sizeof(Layout))[from];
}

std::atomic<uint64_t>& Board::done(uint64_t sequence) const {
  return layout().done[sequence % kRing];
}

std::atomic<uint64_t>& Board::ready(int from, uint64_t sequence) const {
  return inbox(from).ready[sequence % kRing];
}

std::atomic<uint64_t>& Board::arrived(int from, uint64_t sequence, int following) const {
  return inbox(from).arrived[sequence % kRing][following];
}

CUdeviceptr Board::address_of(const std::atomic<uint64_t>& word) const {
  return pinned_.address() + (reinterpret_cast<const std::byte*>(&word) - memory_->data());
}

void Board::publish(uint64_t sequence, const Place& landing) const {
  Choice& choice = layout().choices[sequence % kRing];
  choice.sequence.store(0);
  choice.segment.store(landing.segment);
  choice.offset.store(landing.offset);
  choice.bytes.store(landing.bytes);
  choice.sequence.store(sequence);
}

std::optional<Place> Board::published(uint64_t sequence) const {
  const Choice& choice = layout().choices[sequence % kRing];
  if (choice.sequence.load() != sequence) return std::nullopt;
  const Place place{static_cast<uint32_t>(choice.segment.load()), choice.offset.load(),
                    choice.bytes.load()};
  if (choice.sequence.load() != sequence) return std::nullopt;  // changed meanwhile
  return place;
}

}  // namespace tide::device::cuda
