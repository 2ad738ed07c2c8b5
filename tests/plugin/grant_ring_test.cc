// Grants in their ring: round trips, joint writes, half-written cells, and what a peer may not
// write.
#include "plugin/net/grant_ring.h"

#include <gtest/gtest.h>

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

TEST(GrantRing, AJointWriteIsHereWhenItsLastCellIs) {
  const auto outbox = std::make_unique<GrantRing>(), ring = std::make_unique<GrantRing>();
  for (uint32_t i = 0; i < 4; ++i) grant(kSlots + 10 + i, 1, outbox.get(), 0x1000 * i);
  join(&outbox->first[10], 4);
  for (uint32_t last = 10; last < 13; ++last) {
    ring->first[last] = outbox->first[last];
    EXPECT_EQ(state(*ring, kSlots + 10), GrantState::kAbsent);
    EXPECT_EQ(state(*ring, kSlots + 12), GrantState::kAbsent);
  }
  ring->first[13] = outbox->first[13];
  for (uint32_t i = 0; i < 4; ++i) {
    Grant got;
    EXPECT_EQ(decode(*ring, kSlots + 10 + i, &got), GrantState::kHere);
    EXPECT_EQ(got.entries[0].address, 0x1000 * i);
  }
  EXPECT_EQ(state(*ring, kSlots + 14), GrantState::kAbsent);
}

TEST(GrantRing, AGroupIsHereWhenAllItsCellsAre) {
  const auto outbox = std::make_unique<GrantRing>(), ring = std::make_unique<GrantRing>();
  grant(7, 3, outbox.get());
  ring->first[7] = outbox->first[7];
  EXPECT_EQ(state(*ring, 7), GrantState::kAbsent);
  ring->others[7][0] = outbox->others[7][0];
  EXPECT_EQ(state(*ring, 7), GrantState::kAbsent);
  ring->others[7][1] = outbox->others[7][1];
  EXPECT_EQ(state(*ring, 7), GrantState::kHere);
}

TEST(GrantRing, MalformedCellsAreTold) {
  const auto spoilt = [](auto spoil) {
    const auto ring = std::make_unique<GrantRing>();
    grant(kSlots - 1, 2, ring.get());
    spoil(ring->first[kSlots - 1], ring->others[kSlots - 1][0]);
    return state(*ring, kSlots - 1);
  };
  using Cell = GrantCell;
  EXPECT_EQ(spoilt([](Cell&, Cell&) {}), GrantState::kHere);
  EXPECT_EQ(spoilt([](Cell& first, Cell&) { first.seal.count = kMaxGroup + 1; }),
            GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell& first, Cell&) { first.seal.after = 1; }), GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell& first, Cell&) { first.seal.entry = 1; }), GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell& first, Cell&) { first.size = kMaxMessageBytes + 1; }),
            GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell&, Cell& other) { other.seal.count = 1; }), GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell&, Cell& other) { other.seal.entry = 2; }), GrantState::kMalformed);
  EXPECT_EQ(spoilt([](Cell&, Cell& other) { other.size = kMaxMessageBytes + 1; }),
            GrantState::kMalformed);
}

}  // namespace
}  // namespace tide::net
