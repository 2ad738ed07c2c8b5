// The choice of landing slots, and the words that exchanges wait for: pure, no GPU needed.
#include "shim/device/cuda/slot_heap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/device/ranks.h"

namespace tide::test {
namespace {

using device::cuda::Fence;
using device::cuda::Place;
using device::cuda::SlotHeap;

Fence fence(int number) { return std::make_shared<int>(number); }
int number_of(const Fence& fence) { return *static_cast<int*>(fence.get()); }

std::set<int> numbers(const SlotHeap::Grant& grant) {
  std::set<int> result;
  for (const Fence& fence : grant.fences) result.insert(number_of(fence));
  return result;
}

TEST(SlotHeap, TakesTheSmallestRangeThatFits) {
  SlotHeap heap;
  EXPECT_FALSE(heap.take(1));
  heap.add(1, 8192);
  heap.add(2, 2048);
  const auto small = heap.take(1500);
  ASSERT_TRUE(small);
  EXPECT_EQ(small->place.segment, 2u);
  EXPECT_EQ(small->place.bytes, 1536u);
  const auto large = heap.take(4096);
  ASSERT_TRUE(large);
  EXPECT_EQ(large->place.segment, 1u);
  EXPECT_FALSE(heap.take(5000));
  heap.give(large->place, {});
  EXPECT_EQ(heap.take(8192)->place.offset, 0u);  // one range again
}

TEST(SlotHeap, AZeroSlotHasAPlaceOfItsOwn) {
  SlotHeap heap;
  heap.add(1, 1024);
  const auto first = heap.take(0);
  const auto second = heap.take(0);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->place.offset, second->place.offset);
}

TEST(SlotHeap, FencesFollowTheBytes) {
  SlotHeap heap;
  heap.add(1, 4096);
  const Place a = heap.take(1024)->place;
  const Place b = heap.take(1024)->place;
  heap.give(a, {fence(1), fence(2)});
  heap.give(b, {fence(3)});
  EXPECT_EQ(numbers(*heap.take(1024)), (std::set<int>{1, 2}));
  heap.give(a, {fence(4)});
  const auto both = heap.take(3000);
  EXPECT_EQ(both->place.offset, 0u);
  EXPECT_EQ(numbers(*both), (std::set<int>{3, 4}));
  heap.give(both->place, {fence(5)});
  EXPECT_EQ(numbers(*heap.take(512)), (std::set<int>{5}));
  EXPECT_EQ(numbers(*heap.take(512)), (std::set<int>{5}));  // the rest kept it
}

// Against a model of single 512-byte blocks; and two heaps must choose alike.
TEST(SlotHeap, RandomUseNeverOverlapsAndNeverForgets) {
  Random random(11);
  SlotHeap heap, twin;
  std::vector<int> owner, last_use;  // by block of segment 1; 0: free, never used
  constexpr uint64_t kBlocks = 64;
  for (SlotHeap* each : {&heap, &twin}) each->add(1, kBlocks * SlotHeap::kAlignment);
  owner.assign(kBlocks, 0);
  last_use.assign(kBlocks, 0);
  std::vector<Place> held;
  int next = 1;
  for (int step = 0; step < 20000; ++step) {
    if (random.below(2) == 0 && !held.empty()) {
      const size_t which = random.below(held.size());
      const Place place = held[which];
      held.erase(held.begin() + static_cast<long>(which));
      heap.give(place, {fence(next)});
      twin.give(place, {fence(next)});
      for (uint64_t b = 0; b < place.bytes / 512; ++b) {
        owner[place.offset / 512 + b] = 0;
        last_use[place.offset / 512 + b] = next;
      }
      ++next;
      continue;
    }
    const uint64_t bytes = 1 + random.below(8 * 512);
    const auto grant = heap.take(bytes);
    const auto other = twin.take(bytes);
    ASSERT_EQ(grant.has_value(), other.has_value());
    if (!grant) {
      // There is really no room.
      uint64_t longest = 0, current = 0;
      for (int o : owner) longest = std::max(longest, current = o == 0 ? current + 512 : 0);
      ASSERT_LT(longest, bytes);
      continue;
    }
    ASSERT_EQ(grant->place.offset, other->place.offset);
    ASSERT_GE(grant->place.bytes, bytes);
    std::set<int> expected;
    for (uint64_t b = 0; b < grant->place.bytes / 512; ++b) {
      int& block = owner.at(grant->place.offset / 512 + b);
      ASSERT_EQ(block, 0);
      block = 1;
      if (const int use = last_use[grant->place.offset / 512 + b]; use != 0) expected.insert(use);
    }
    ASSERT_EQ(numbers(*grant), expected);
    held.push_back(grant->place);
  }
}

}  // namespace
}  // namespace tide::test
