// The ring of cells in the sender's memory into which the receiver writes its grants, by RDMA
// WRITE: no receive is consumed and no completion made for a grant, the sender looks at the next
// cell. Pure.
//
// A cell is one entry of a grant and one cache line. Its last eight bytes tell which position of
// the ring it is for, so nobody has to clear it, and a grant that is written again does no harm.
// Cells of grants that follow each other may be written at once. The last eight bytes of a write
// are taken to arrive last, as NCCL's own transport does (src/transport/net_ib.cc, fifo).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "plugin/net/wire.h"

namespace tide::net {

struct alignas(64) GrantCell {
  uint64_t address;
  uint64_t size;
  std::array<uint32_t, kMaxDevices> keys;
  int32_t tag;
  uint32_t reserved;
  struct Seal {
    uint32_t position;
    uint8_t entry;  // of the grant's
    uint8_t count;  // of the grant's entries; 0: never written
    uint8_t after;  // cells that follow this one in the same write
    uint8_t reserved;
  };
  alignas(8) Seal seal;
};
static_assert(sizeof(GrantCell) == 64 && offsetof(GrantCell, seal) == 56);

// Positions count cells for ever; the cell of a position is position % kCells. So many that the
// receives that may be open (kSlots) never meet their own cells again.
constexpr uint32_t kCells = kSlots * kMaxGroup;
// Cells of one write, and of one grant: they do not wrap around, so the ring is longer by the rest.
constexpr uint32_t kMaxCells = kMaxGroup;
constexpr uint32_t kRingCells = kCells + kMaxCells - 1;

// Into the cells of ring[position % kCells] and after. The last cell is sealed as the write's last.
void encode(const Grant& grant, uint32_t position, GrantCell* ring);
// Makes one write of `cells` cells that begin at `first`.
void join(GrantCell* first, uint32_t cells);

enum class GrantState { kAbsent, kHere, kMalformed };
// The grant at `position`.
GrantState decode(const GrantCell* ring, uint32_t position, Grant* grant);

}  // namespace tide::net
