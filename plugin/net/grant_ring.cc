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

bool is_of(const GrantCell::Seal& seal, uint32_t sequence) {
  return seal.count > 0 && seal.sequence == sequence;
}

// False where no receive can be meant.
bool read(const GrantCell& cell, GrantEntry* entry) {
  *entry = {cell.address, cell.size, cell.tag, cell.keys};
  return entry->size <= kMaxMessageBytes;
}

}  // namespace

void encode(const GrantEntry& entry, uint32_t sequence, uint32_t index, uint32_t count,
            GrantRing* ring) {
  const uint32_t slot = sequence % kSlots;
  (index == 0 ? ring->first[slot] : ring->others[slot][index - 1]) = {
      .address = entry.address,
      .size = entry.size,
      .keys = entry.keys,
      .tag = entry.tag,
      .reserved = 0,
      .seal = {.sequence = sequence,
               .entry = static_cast<uint8_t>(index),
               .count = static_cast<uint8_t>(count),
               .after = 0,
               .reserved = 0}};
}

void join(GrantCell* first, uint32_t grants) {
  for (uint32_t i = 0; i < grants; ++i) first[i].seal.after = static_cast<uint8_t>(grants - 1 - i);
}

GrantState decode(const GrantRing& ring, uint32_t sequence, Grant* grant) {
  const uint32_t slot = sequence % kSlots;
  const GrantCell::Seal first = seal_of(ring.first[slot]);
  if (!is_of(first, sequence)) return GrantState::kAbsent;
  if (first.entry != 0 || first.count > kMaxGroup || slot + first.after >= kSlots) {
    return GrantState::kMalformed;
  }
  // Only the last cell of a write says that all of it is here.
  if (first.after > 0 && !is_of(seal_of(ring.first[slot + first.after]), sequence + first.after)) {
    return GrantState::kAbsent;
  }
  grant->count = first.count;
  if (!read(ring.first[slot], &grant->entries[0])) return GrantState::kMalformed;
  for (uint32_t i = 1; i < grant->count; ++i) {
    const GrantCell& cell = ring.others[slot][i - 1];
    const GrantCell::Seal seal = seal_of(cell);
    if (!is_of(seal, sequence)) return GrantState::kAbsent;
    if (seal.entry != i || seal.count != first.count || !read(cell, &grant->entries[i])) {
      return GrantState::kMalformed;
    }
  }
  return GrantState::kHere;
}

}  // namespace tide::net
