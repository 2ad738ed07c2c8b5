// Grants as cells: see grant_ring.h. Integers are little endian.
#include "plugin/net/grant_ring.h"

#include <atomic>
#include <bit>

namespace tide::net {
namespace {

static_assert(std::endian::native == std::endian::little);

// In one access: the peer may be writing.
GrantCell::Seal seal_of(const GrantCell& cell) {
  auto* bits = reinterpret_cast<uint64_t*>(const_cast<GrantCell::Seal*>(&cell.seal));
  return std::bit_cast<GrantCell::Seal>(
      std::atomic_ref<uint64_t>(*bits).load(std::memory_order_acquire));
}

}  // namespace

void encode(const Grant& grant, uint32_t position, GrantCell* ring) {
  GrantCell* cells = ring + position % kCells;
  for (uint32_t i = 0; i < grant.count; ++i) {
    const GrantEntry& entry = grant.entries[i];
    cells[i] = {.address = entry.address,
                .size = entry.size,
                .keys = entry.keys,
                .tag = entry.tag,
                .reserved = 0,
                .seal = {.position = position + i,
                         .entry = static_cast<uint8_t>(i),
                         .count = static_cast<uint8_t>(grant.count),
                         .after = 0,
                         .reserved = 0}};
  }
  join(cells, grant.count);
}

void join(GrantCell* first, uint32_t cells) {
  for (uint32_t i = 0; i < cells; ++i) first[i].seal.after = static_cast<uint8_t>(cells - 1 - i);
}

GrantState decode(const GrantCell* ring, uint32_t position, Grant* grant) {
  const GrantCell* cells = ring + position % kCells;
  const GrantCell::Seal first = seal_of(cells[0]);
  if (first.count == 0 || first.position != position) return GrantState::kAbsent;
  if (first.entry != 0 || first.count > kMaxGroup || first.after >= kMaxCells ||
      first.count > first.after + 1) {
    return GrantState::kMalformed;
  }
  // Only the last cell of a write says that all of it is here.
  if (first.after > 0) {
    const GrantCell::Seal last = seal_of(cells[first.after]);
    if (last.count == 0 || last.position != position + first.after) return GrantState::kAbsent;
  }
  grant->count = first.count;
  for (uint32_t i = 0; i < grant->count; ++i) {
    const GrantCell::Seal seal = seal_of(cells[i]);
    if (seal.position != position + i || seal.entry != i || seal.count != first.count) {
      return GrantState::kMalformed;
    }
    grant->entries[i] = {cells[i].address, cells[i].size, cells[i].tag, cells[i].keys};
    if (grant->entries[i].size > kMaxMessageBytes) return GrantState::kMalformed;
  }
  return GrantState::kHere;
}

}  // namespace tide::net
