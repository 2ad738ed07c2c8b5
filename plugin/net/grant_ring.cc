// Grants as cells: see grant_ring.h. Integers are little endian.
#include "plugin/net/grant_ring.h"

#include <atomic>
#include <bit>

namespace tide::net {
namespace {

static_assert(std::endian::native == std::endian::little);

using Words = std::array<uint64_t, sizeof(GrantCell) / sizeof(uint64_t)>;
constexpr size_t kLastWord = std::tuple_size_v<Words> - 1;

// Odd, and the products do not depend on each other: some ns for a cell.
constexpr Words kFactors = {0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb,
                            0xd6e8feb86659fd93, 0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53,
                            0xa0761d6478bd642f, 0xe7037ed1a0b428db};

uint32_t check_of(GrantCell cell) {
  cell.check = 0;
  const auto words = std::bit_cast<Words>(cell);
  uint64_t sum = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const uint64_t product = (words[i] + i) * kFactors[i];
    sum += product ^ product >> 32;
  }
  sum *= kFactors[0];
  return static_cast<uint32_t>(sum >> 32);
}

uint64_t load(const GrantCell& cell, size_t word) {
  auto* words = reinterpret_cast<uint64_t*>(const_cast<GrantCell*>(&cell));
  return std::atomic_ref<uint64_t>(words[word]).load(std::memory_order_acquire);
}

// A copy of the cell of this entry, if all of it is here. What is checked is the copy, for the peer
// may be writing.
bool take(const GrantCell& cell, uint32_t sequence, GrantCell* copy) {
  Words words;
  words[kLastWord] = load(cell, kLastWord);
  if (static_cast<uint32_t>(words[kLastWord]) != sequence) return false;
  for (size_t i = 0; i < kLastWord; ++i) words[i] = load(cell, i);
  *copy = std::bit_cast<GrantCell>(words);
  return copy->count > 0 && copy->check == check_of(*copy);
}

}  // namespace

void seal(GrantCell* cell) { cell->check = check_of(*cell); }

void encode(const GrantEntry& entry, uint32_t sequence, uint32_t index, uint32_t count,
            GrantRing* ring) {
  const uint32_t slot = sequence % kSlots;
  GrantCell& cell = index == 0 ? ring->first[slot] : ring->others[slot][index - 1];
  cell = {.address = entry.address,
          .size = entry.size,
          .keys = entry.keys,
          .tag = entry.tag,
          .check = 0,
          .sequence = sequence,
          .entry = static_cast<uint8_t>(index),
          .count = static_cast<uint8_t>(count),
          .reserved = 0};
  seal(&cell);
}

GrantState decode(const GrantRing& ring, uint32_t sequence, Grant* grant) {
  const uint32_t slot = sequence % kSlots;
  GrantCell cell;
  if (!take(ring.first[slot], sequence, &cell)) return GrantState::kAbsent;
  const uint32_t count = cell.count;
  if (count > kMaxGroup) return GrantState::kMalformed;
  grant->count = count;
  for (uint32_t i = 0; i < count; ++i) {
    if (i > 0 && !take(ring.others[slot][i - 1], sequence, &cell)) return GrantState::kAbsent;
    if (cell.entry != i || cell.count != count || cell.size > kMaxMessageBytes) {
      return GrantState::kMalformed;
    }
    grant->entries[i] = {cell.address, cell.size, cell.tag, cell.keys};
  }
  return GrantState::kHere;
}

}  // namespace tide::net
