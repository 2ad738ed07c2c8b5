// The memory region cache, on a stand-in for libibverbs' registration.
#include "plugin/verbs/memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "include/tide/error.h"

namespace tide::verbs {
namespace {

constexpr size_t kPage = 4096;

// Regions are not real: a registration is recorded here and never handed to libibverbs.
struct Recorder {
  std::vector<MemoryRange> ranges;
  int failures = 0;  // how many attempts are refused
  MemoryCache::Register callback() {
    return [this](const MemoryRange& range) -> RegionHandle {
      ranges.push_back(range);
      if (failures > 0) {
        --failures;
        errno = EINVAL;
        return nullptr;
      }
      static ibv_context context = {};
      auto* region = new ibv_mr();
      region->context = &context;
      return RegionHandle(region);
    };
  }
};

// ibv_dereg_mr would reach into a driver; these tests give regions back by hand.
class Memory : public ::testing::Test {
 protected:
  void TearDown() override {
    // Nothing may be left: a handle that is destroyed calls libibverbs.
    EXPECT_EQ(cache.size(), 0u);
  }
  const MemoryRegion* get(uintptr_t address, size_t size, int fd = -1, uint64_t offset = 0) {
    return cache.get({address, size, fd, offset});
  }
  void put(const MemoryRegion* region) {
    if (region->references == 1) {
      delete const_cast<MemoryRegion*>(region)->handle.release();
    }
    cache.put(region);
  }
  Recorder recorder;
  MemoryCache cache{recorder.callback(), kPage};
};

TEST_F(Memory, RangesGrowToPages) {
  const MemoryRegion* region = get(0x10010, 100);
  ASSERT_EQ(recorder.ranges.size(), 1u);
  EXPECT_EQ(recorder.ranges[0].address, 0x10000u);
  EXPECT_EQ(recorder.ranges[0].size, kPage);
  put(region);
}

TEST_F(Memory, ARangeOverAPageBorderTakesBothPages) {
  const MemoryRegion* region = get(0x10ff0, 0x20);
  EXPECT_EQ(recorder.ranges[0].address, 0x10000u);
  EXPECT_EQ(recorder.ranges[0].size, 2 * kPage);
  put(region);
}

TEST_F(Memory, CoveredRangesShare) {
  const MemoryRegion* outer = get(0x20000, 8 * kPage);
  const MemoryRegion* inner = get(0x21008, 16);
  EXPECT_EQ(outer, inner);
  EXPECT_EQ(recorder.ranges.size(), 1u);
  put(inner);
  EXPECT_EQ(cache.size(), 1u);
  put(outer);
}

TEST_F(Memory, OverlapIsNotCover) {
  const MemoryRegion* first = get(0x30000, kPage);
  const MemoryRegion* second = get(0x30800, kPage);
  EXPECT_NE(first, second);
  EXPECT_EQ(cache.size(), 2u);
  put(first);
  put(second);
}

TEST_F(Memory, WhatIsReleasedIsRegisteredAgain) {
  put(get(0x40000, kPage));
  put(get(0x40000, kPage));
  EXPECT_EQ(recorder.ranges.size(), 2u);
}

TEST_F(Memory, DmaBufKeepsItsOffsetInStep) {
  const MemoryRegion* region = get(0x50100, 100, /*fd=*/3, /*offset=*/0x2100);
  EXPECT_EQ(recorder.ranges[0].address, 0x50000u);
  EXPECT_EQ(recorder.ranges[0].offset, 0x2000u);
  put(region);
}

TEST_F(Memory, DmaBufThatBeginsInsideAPageIsNotGrownBackwards) {
  const MemoryRegion* region = get(0x50100, 100, /*fd=*/3, /*offset=*/0);
  EXPECT_EQ(recorder.ranges[0].address, 0x50100u);
  EXPECT_EQ(recorder.ranges[0].offset, 0u);
  put(region);
}

TEST_F(Memory, DmaBufIsTriedAgainWithItsExactRange) {
  recorder.failures = 1;
  const MemoryRegion* region = get(0x60000, 100, /*fd=*/3, /*offset=*/0);
  ASSERT_EQ(recorder.ranges.size(), 2u);
  EXPECT_EQ(recorder.ranges[0].size, kPage);
  EXPECT_EQ(recorder.ranges[1].size, 100u);
  put(region);
}

TEST_F(Memory, ErrorsSayWhat) {
  recorder.failures = 1;
  EXPECT_THROW(get(0x70000, 100), Error);
  EXPECT_THROW(get(0, 100), Error);
  EXPECT_THROW(get(0x70000, 0), Error);
  EXPECT_THROW(get(UINTPTR_MAX - 10, 100), Error);
}

TEST_F(Memory, ThreadsShare) {
  constexpr int kThreads = 4;
  // One reference stays, so that no thread's put is the last.
  const MemoryRegion* kept = get(0x80000, 16 * kPage);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const MemoryRegion* region = cache.get({0x80000 + 64u * static_cast<unsigned>(t), 64});
        if (region != kept) ++wrong;
        cache.put(region);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(kept->references, 1u);
  EXPECT_EQ(recorder.ranges.size(), 1u);
  put(kept);
}

}  // namespace
}  // namespace tide::verbs
