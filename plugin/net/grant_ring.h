// The ring in the sender's memory into which the receiver writes its grants, by RDMA WRITE: no
// receive is consumed and no completion made for a grant, the sender looks at the next cell. Pure.
//
// A cell is one entry of a grant and one cache line. Its last bytes tell which grant it is of, so
// nobody has to clear it, and a grant that is written again does no harm. Grants of one entry that
// follow each other may be written at once.
//
// IBTA promises nothing about memory that is read before a completion tells of the write (o9-20),
// and PCIe promises rising addresses only where ordering is not relaxed (2.4.3). So a cell carries
// a check of all its bytes: one of which a part is missing is not here yet, whatever arrived first.
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
  uint32_t check;  // of all other bytes
  uint32_t sequence;
  uint8_t entry;  // place in the grant
  uint8_t count;  // of the grant's entries; 0: never written
  uint16_t reserved;
};
static_assert(sizeof(GrantCell) == 64 && offsetof(GrantCell, sequence) == 56);

// By sequence % kSlots. First entries lie together: nearly all grants have but one. Has its pages
// to itself: where fork does not copy, registered pages are not there in a child.
struct alignas(4096) GrantRing {
  std::array<GrantCell, kSlots> first;
  std::array<std::array<GrantCell, kMaxGroup - 1>, kSlots> others;
};

// Fills in the cell's check.
void seal(GrantCell* cell);
// Into the cell of that entry.
void encode(const GrantEntry& entry, uint32_t sequence, uint32_t index, uint32_t count,
            GrantRing* ring);

enum class GrantState { kAbsent, kHere, kMalformed };
// The grant with this number. Its cells may have been written in any order.
GrantState decode(const GrantRing& ring, uint32_t sequence, Grant* grant);

}  // namespace tide::net
