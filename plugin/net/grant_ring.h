// The ring in the sender's memory into which the receiver writes its grants, by RDMA WRITE: no
// receive is consumed and no completion made for a grant, the sender looks at the next cell. Pure.
//
// A cell is one entry of a grant and one cache line. Its last eight bytes tell which grant it is
// of, so nobody has to clear it, and a grant that is written again does no harm. Grants of one
// entry that follow each other may be written at once. The last eight bytes of a write are taken to
// arrive last, as NCCL's own transport does (src/transport/net_ib.cc, fifo).
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
    uint32_t sequence;  // of the grant
    uint8_t entry;      // of the grant's
    uint8_t count;      // of the grant's entries; 0: never written
    uint8_t after;      // grants that follow this one in the same write
    uint8_t reserved;
  };
  alignas(8) Seal seal;
};
static_assert(sizeof(GrantCell) == 64 && offsetof(GrantCell, seal) == 56);

// By sequence % kSlots. First entries lie together: nearly all grants have but one.
struct GrantRing {
  std::array<GrantCell, kSlots> first;
  std::array<std::array<GrantCell, kMaxGroup - 1>, kSlots> others;
};

// Into the cell of that entry.
void encode(const GrantEntry& entry, uint32_t sequence, uint32_t index, uint32_t count,
            GrantRing* ring);
// Makes one write of `grants` grants of one entry that begin at `first`.
void join(GrantCell* first, uint32_t grants);

enum class GrantState { kAbsent, kHere, kMalformed };
// The grant with this number. The other cells of one of several entries are written first.
GrantState decode(const GrantRing& ring, uint32_t sequence, Grant* grant);

}  // namespace tide::net
