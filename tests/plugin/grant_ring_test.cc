// Grants in their ring: round trips, half-written cells in any order, and what a peer may not
// write.
#include "plugin/net/grant_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>

namespace tide::net {
namespace {

GrantEntry example(uint32_t i, uint64_t address = 0x7f0000000000) {
  GrantEntry entry;
  entry.address = address + i;
  entry.size = i == 0 ? kMaxMessageBytes : i;
  entry.tag = -static_cast<int>(i);
  for (int device = 0; device < kMaxDevices; ++device) {
    entry.keys[device] = 100 * i + static_cast<uint32_t>(device);
  }
  return entry;
}

void grant(uint32_t sequence, uint32_t count, GrantRing* ring, uint64_t address = 0x7f0000000000) {
  for (uint32_t i = 0; i < count; ++i) encode(example(i, address), sequence, i, count, ring);
}

GrantState state(const GrantRing& ring, uint32_t sequence) {
  Grant got;
  return decode(ring, sequence, &got);
}

TEST(GrantRing, RoundTripAtEveryPlace) {
  for (const uint32_t sequence : {0u, 1u, kSlots - 1, kSlots, 2 * kSlots - 3, UINT32_MAX}) {
    for (uint32_t count = 1; count <= kMaxGroup; ++count) {
      const auto ring = std::make_unique<GrantRing>();
      EXPECT_EQ(state(*ring, sequence), GrantState::kAbsent);
      grant(sequence, count, ring.get());
      Grant got;
      ASSERT_EQ(decode(*ring, sequence, &got), GrantState::kHere);
      ASSERT_EQ(got.count, count);
      for (uint32_t i = 0; i < count; ++i) {
        EXPECT_EQ(got.entries[i].address, example(i).address);
        EXPECT_EQ(got.entries[i].size, example(i).size);
        EXPECT_EQ(got.entries[i].tag, example(i).tag);
        EXPECT_EQ(got.entries[i].keys, example(i).keys);
      }
      // Those a lap before and a lap after are others.
      EXPECT_EQ(state(*ring, sequence - kSlots), GrantState::kAbsent);
      EXPECT_EQ(state(*ring, sequence + kSlots), GrantState::kAbsent);
    }
  }
}

// A write may become visible in any order: every mixture, by 4 bytes, of the cell of the last lap
// and of this one.
TEST(GrantRing, ACellIsHereWhenAllOfItIs) {
  constexpr size_t kParts = sizeof(GrantCell) / sizeof(uint32_t);
  using Parts = std::array<uint32_t, kParts>;
  const auto ring = std::make_unique<GrantRing>();
  grant(5, 1, ring.get(), 0x1000);
  const auto before = std::bit_cast<Parts>(ring->first[5]);
  grant(kSlots + 5, 1, ring.get(), 0x7f1234500000);
  const auto after = std::bit_cast<Parts>(ring->first[5]);
  for (uint32_t arrived = 0; arrived < 1u << kParts; ++arrived) {
    Parts mixture;
    for (size_t i = 0; i < kParts; ++i) mixture[i] = arrived >> i & 1 ? after[i] : before[i];
    ring->first[5] = std::bit_cast<GrantCell>(mixture);
    ASSERT_EQ(state(*ring, kSlots + 5), mixture == after ? GrantState::kHere : GrantState::kAbsent)
        << "parts that arrived: " << arrived;
  }
}

TEST(GrantRing, EveryFlippedBitIsNoticed) {
  const auto ring = std::make_unique<GrantRing>();
  grant(9, 1, ring.get());
  const GrantCell good = ring->first[9];
  for (size_t bit = 0; bit < 8 * sizeof(GrantCell); ++bit) {
    reinterpret_cast<uint8_t*>(&ring->first[9])[bit / 8] ^= 1 << bit % 8;
    EXPECT_EQ(state(*ring, 9), GrantState::kAbsent) << bit;
    ring->first[9] = good;
  }
  EXPECT_EQ(state(*ring, 9), GrantState::kHere);
}

TEST(GrantRing, AGroupIsHereWhenAllItsCellsAre) {
  const auto outbox = std::make_unique<GrantRing>();
  grant(7, 3, outbox.get());
  std::array<int, 3> order = {0, 1, 2};
  do {
    const auto ring = std::make_unique<GrantRing>();
    grant(7 - kSlots, 3, ring.get(), 0x1000);  // the last lap's
    for (const int cell : order) {
      EXPECT_EQ(state(*ring, 7), GrantState::kAbsent);
      if (cell == 0) {
        ring->first[7] = outbox->first[7];
      } else {
        ring->others[7][cell - 1] = outbox->others[7][cell - 1];
      }
    }
    EXPECT_EQ(state(*ring, 7), GrantState::kHere);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(GrantRing, MalformedCellsAreTold) {
  const auto spoilt = [](auto spoil) {
    const auto ring = std::make_unique<GrantRing>();
    grant(kSlots - 1, 2, ring.get());
    GrantCell& first = ring->first[kSlots - 1];
    GrantCell& other = ring->others[kSlots - 1][0];
    spoil(first, other);
    seal(&first);
    seal(&other);
    return state(*ring, kSlots - 1);
  };
  using Cell = GrantCell;
  EXPECT_EQ(spoilt([](Cell&, Cell&) {}), GrantState::kHere);
  EXPECT_EQ(spoilt([](Cell& first, Cell&) { first.count = 0; }), GrantState::kAbsent);
  EXPECT_EQ(spoilt([](Cell& first, Cell&) { first.count = kMaxGroup + 1; }),
            GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell& first, Cell&) { first.entry = 1; }), GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell& first, Cell&) { first.size = kMaxMessageBytes + 1; }),
            GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell&, Cell& other) { other.count = 1; }), GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell&, Cell& other) { other.entry = 2; }), GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell&, Cell& other) { other.size = kMaxMessageBytes + 1; }),
            GrantState::kMalformed);
}

}  // namespace
}  // namespace tide::net
