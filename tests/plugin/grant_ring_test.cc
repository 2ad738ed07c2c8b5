// Grants in their ring: round trips, joint writes, half-written cells, and what a peer may not
// write.
#include "plugin/net/grant_ring.h"

#include <gtest/gtest.h>

#include <vector>

namespace tide::net {
namespace {

Grant example(uint32_t count, uint64_t address = 0x7f0000000000) {
  Grant grant;
  grant.count = count;
  for (uint32_t i = 0; i < count; ++i) {
    grant.entries[i].address = address + i;
    grant.entries[i].size = i == 0 ? kMaxMessageBytes : i;
    grant.entries[i].tag = -static_cast<int>(i);
    for (int device = 0; device < kMaxDevices; ++device) {
      grant.entries[i].keys[device] = 100 * i + static_cast<uint32_t>(device);
    }
  }
  return grant;
}

GrantState state(const std::vector<GrantCell>& ring, uint32_t position) {
  Grant grant;
  return decode(ring.data(), position, &grant);
}

TEST(GrantRing, RoundTripAtEveryPlace) {
  // The last ones are at the end of the ring, of its second lap, and where positions overflow.
  for (const uint32_t position : {0u, 1u, kCells - 1, 2 * kCells - 3, UINT32_MAX - 2}) {
    for (uint32_t count = 1; count <= kMaxGroup; ++count) {
      std::vector<GrantCell> ring(kRingCells);
      EXPECT_EQ(state(ring, position), GrantState::kAbsent);
      const Grant sent = example(count);
      encode(sent, position, ring.data());
      Grant got;
      ASSERT_EQ(decode(ring.data(), position, &got), GrantState::kHere);
      ASSERT_EQ(got.count, count);
      for (uint32_t i = 0; i < count; ++i) {
        EXPECT_EQ(got.entries[i].address, sent.entries[i].address);
        EXPECT_EQ(got.entries[i].size, sent.entries[i].size);
        EXPECT_EQ(got.entries[i].tag, sent.entries[i].tag);
        EXPECT_EQ(got.entries[i].keys, sent.entries[i].keys);
      }
      // The lap before and the lap after are others.
      EXPECT_EQ(state(ring, position - kCells), GrantState::kAbsent);
      EXPECT_EQ(state(ring, position + kCells), GrantState::kAbsent);
    }
  }
}

TEST(GrantRing, AJointWriteIsHereWhenItsLastCellIs) {
  std::vector<GrantCell> outbox(kRingCells), ring(kRingCells);
  encode(example(1), 10, outbox.data());
  encode(example(3, 0x1000), 11, outbox.data());
  encode(example(1, 0x2000), 14, outbox.data());
  join(&outbox[10], 5);
  for (uint32_t last = 10; last < 14; ++last) {
    ring[last] = outbox[last];
    EXPECT_EQ(state(ring, 10), GrantState::kAbsent);
    EXPECT_EQ(state(ring, 11), GrantState::kAbsent);
  }
  ring[14] = outbox[14];
  Grant got;
  EXPECT_EQ(decode(ring.data(), 10, &got), GrantState::kHere);
  EXPECT_EQ(decode(ring.data(), 11, &got), GrantState::kHere);
  EXPECT_EQ(got.count, 3u);
  EXPECT_EQ(got.entries[2].address, 0x1002u);
  EXPECT_EQ(decode(ring.data(), 14, &got), GrantState::kHere);
  EXPECT_EQ(state(ring, 15), GrantState::kAbsent);
}

TEST(GrantRing, MalformedCellsAreTold) {
  const auto spoilt = [](auto spoil) {
    std::vector<GrantCell> ring(kRingCells);
    encode(example(2), 5, ring.data());
    spoil(&ring[5]);
    return state(ring, 5);
  };
  EXPECT_EQ(spoilt([](GrantCell*) {}), GrantState::kHere);
  EXPECT_EQ(spoilt([](GrantCell* cells) { cells[0].seal.count = kMaxGroup + 1; }),
            GrantState::kMalformed);
  EXPECT_EQ(spoilt([](GrantCell* cells) { cells[0].seal.count = 3; }), GrantState::kMalformed);
  EXPECT_EQ(spoilt([](GrantCell* cells) { cells[0].seal.after = kMaxCells; }),
            GrantState::kMalformed);
  EXPECT_EQ(spoilt([](GrantCell* cells) { cells[0].seal.entry = 1; }), GrantState::kMalformed);
  EXPECT_EQ(spoilt([](GrantCell* cells) { cells[1].seal.count = 1; }), GrantState::kMalformed);
  EXPECT_EQ(spoilt([](GrantCell* cells) { cells[1].size = kMaxMessageBytes + 1; }),
            GrantState::kMalformed);
}

}  // namespace
}  // namespace tide::net
