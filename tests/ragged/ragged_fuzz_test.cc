// Random small groups against exhaustive search over every shard and every start.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

#include "shim/layout/ragged_shard.h"

namespace tide::ragged {
namespace {

struct Case {
  std::vector<Item> items;
  int64_t devices = 1, unit = 1, alignment = 1;
};

// Whether a tensor may start at `start`, from the statement of the rule alone.
bool may_start(int64_t start, const Item& item, int64_t shard, int64_t alignment) {
  if (start % alignment != 0) return false;
  for (int64_t border = shard; border < start + item.numel; border += shard) {
    if (border > start && (border - start) % item.block != 0) return false;
  }
  return true;
}

// Tries every start of every tensor.
bool fits_exhaustively(const Case& c, int64_t shard) {
  const int64_t size = shard * c.devices;
  std::vector<char> free_from(size_t(size) + 1, 0);  // positions that the tensors so far can leave
  free_from[0] = 1;
  for (const Item& item : c.items) {
    std::vector<char> next(size_t(size) + 1, 0);
    bool reachable = false, any = false;
    for (int64_t start = 0; start + item.numel <= size; ++start) {
      reachable = reachable || free_from[size_t(start)];
      if (reachable && may_start(start, item, shard, c.alignment)) {
        next[size_t(start + item.numel)] = 1;
        any = true;
      }
    }
    if (!any) return false;
    free_from = std::move(next);
  }
  return true;
}

int64_t exhaustive_optimum(const Case& c, int64_t lower_bound) {
  for (int64_t shard = lower_bound;; shard += c.unit) {
    if (fits_exhaustively(c, shard)) return shard;
  }
}

Case random_case(std::mt19937_64* random) {
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(*random);
  };
  Case c;
  c.devices = pick(1, 6);
  c.alignment = pick(0, 9) == 0 ? pick(2, 4) : 1;
  c.unit = c.alignment * (pick(0, 2) == 0 ? pick(1, 4) : 1);
  for (int64_t n = pick(1, 6); n > 0; --n) {
    int64_t row = pick(1, 12), rows = pick(1, 12), per_block = pick(1, 5);
    int64_t numel = row * rows;
    // Blocks that divide the tensor, that do not, and that are the whole of it.
    int64_t block = std::min(numel, pick(0, 3) == 0 ? pick(1, numel) : row * per_block);
    c.items.push_back({numel, std::lcm(block, c.alignment)});
  }
  return c;
}

Buffer as_buffer(const Case& c, const Layout& layout) {
  Buffer buffer;
  buffer.devices = c.devices;
  buffer.unit = c.unit;
  buffer.alignment = c.alignment;
  buffer.shard = layout.shard;
  buffer.proof = layout.proof;
  for (size_t i = 0; i < c.items.size(); ++i) {
    Placed placed;
    placed.tensor.name = "t" + std::to_string(i);
    placed.tensor.shape = {c.items[i].numel};
    placed.numel = c.items[i].numel;
    placed.block = c.items[i].block;
    placed.start = layout.starts[i];
    buffer.numel += placed.numel;
    buffer.tensors.push_back(placed);
  }
  return buffer;
}

std::string text_of(const Case& c) {
  std::string text = std::to_string(c.devices) + " devices, unit " + std::to_string(c.unit) +
                     ", alignment " + std::to_string(c.alignment) + ":";
  for (const Item& item : c.items) {
    text += " (" + std::to_string(item.numel) + "," + std::to_string(item.block) + ")";
  }
  return text;
}

TEST(Fuzz, AgainstExhaustiveSearch) {
  constexpr int kCases = 100'000;
  std::mt19937_64 random(20260222);
  int prefix_misses = 0;
  double worst = 1;
  for (int i = 0; i < kCases; ++i) {
    const Case c = random_case(&random);
    Layout prefix = least_shard(c.items, c.devices, c.unit, c.alignment, 0, "fuzz");
    Layout exact = least_shard(c.items, c.devices, c.unit, c.alignment, 1'000'000, "fuzz");
    const int64_t optimum = exhaustive_optimum(c, exact.proof.lower_bound);
    ASSERT_TRUE(exact.proof.minimal) << text_of(c);
    ASSERT_EQ(exact.shard, optimum) << text_of(c);
    ASSERT_GE(prefix.shard, optimum) << text_of(c);
    ASSERT_LE(prefix.shard, 2 * optimum) << text_of(c);
    ASSERT_EQ(check(as_buffer(c, exact)), "") << text_of(c);
    ASSERT_EQ(check(as_buffer(c, prefix)), "") << text_of(c);
    prefix_misses += prefix.shard != optimum;
    worst = std::max(worst, double(prefix.shard) / double(optimum));
  }
  std::printf("prefix search alone: %d of %d above the optimum, worst %.3fx\n", prefix_misses,
              kCases, worst);
  EXPECT_LE(prefix_misses, kCases / 1000);
}

// A valid plan with a larger shard than needed, claimed to be minimal: the checker must refute it.
TEST(Fuzz, CheckerRefutesLargerShards) {
  std::mt19937_64 random(7);
  int refuted = 0;
  for (int i = 0; i < 5'000; ++i) {
    const Case c = random_case(&random);
    Layout least = least_shard(c.items, c.devices, c.unit, c.alignment, 1'000'000, "fuzz");
    for (int64_t shard = least.shard + c.unit; shard <= least.shard + 3 * c.unit; shard += c.unit) {
      Layout larger = least_shard(c.items, c.devices, shard, c.alignment, 0, "fuzz");
      if (larger.shard != shard) continue;  // this size does not hold the tensors
      Buffer buffer = as_buffer(c, larger);
      buffer.proof = {least.proof.lower_bound, c.unit, false};
      ASSERT_EQ(check(buffer), "") << text_of(c) << " at " << shard;
      buffer.proof.minimal = true;
      ASSERT_EQ(check(buffer), "a smaller shard holds the tensors")
          << text_of(c) << " at " << shard;
      ++refuted;
    }
  }
  EXPECT_GT(refuted, 5'000);
}

}  // namespace
}  // namespace tide::ragged
