// How a sum is cut into launches: pure, no GPU needed.
#include <gtest/gtest.h>

#include <map>

#include "shim/device/cuda/board.h"
#include "shim/device/cuda/sum.h"
#include "tests/device/ranks.h"

namespace tide::test {
namespace {

using device::DType;
using device::Sum;
using namespace device::cuda;  // NOLINT: the tested room

TEST(SumPlan, CoversEveryElementOnceInShortLaunches) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random.below(9));
    Sum sum;
    sum.in = static_cast<DType>(random.below(3));
    const uint64_t size = device::size_of(sum.in);
    sum.output = reinterpret_cast<void*>(0x10000);
    uint64_t out = 0;
    const uint64_t own = 0x20000000000;
    const uint64_t landing = 0x30000000000;
    const int runs = static_cast<int>(random.below(300));
    std::map<uint64_t, uint64_t> expected;  // first element: own address, 0 for padding
    for (int r = 0; r < runs; ++r) {
      const uint64_t count = random.below(3) == 0 ? random.below(40'000'000) : random.below(1000);
      sum.runs.push_back({out, count, reinterpret_cast<void*>(own + out * size), out * size});
      out += count + random.below(3);
    }
    const uint64_t padding = random.below(100);
    sum.zeros.push_back({out, padding});

    const SumSettings settings{.blocks = 1 + static_cast<int>(random.below(64))};
    uint64_t covered = 0;
    size_t run = 0;
    uint64_t inside = 0;  // elements of sum.runs[run] that are covered
    for (const SumLaunch& launch : plan_sum(sum, 0, ranks, landing, settings)) {
      ASSERT_GT(launch.pieces, 0);
      ASSERT_LE(launch.pieces, kSumPieces);
      uint64_t elements = 0;
      uint32_t tile = 0;
      for (int p = 0; p < launch.pieces; ++p) {
        const SumPiece& piece = launch.piece[p];
        ASSERT_EQ(piece.tile, tile);
        tile = p + 1 < launch.pieces ? launch.piece[p + 1].tile : launch.tiles;
        ASSERT_GT(tile, piece.tile);
        ASSERT_GT(piece.count, 0u);
        elements += piece.count;
        covered += piece.count;
        if (piece.own == 0) {
          ASSERT_GE(piece.out, out);
          continue;
        }
        while (inside == sum.runs[run].count) {
          inside = 0;
          ++run;
        }
        ASSERT_EQ(piece.out, sum.runs[run].out + inside);
        ASSERT_EQ(piece.own, own + piece.out * size);
        ASSERT_EQ(piece.landing, landing + piece.out * size);
        inside += piece.count;
      }
      const double bytes = static_cast<double>(elements) * (ranks * size + 4);
      // One tile a block is the least, and 16 elements a cut may come on top.
      const double least = settings.blocks * kSumThreads * 8.0 * kSumUnroll * (ranks * size + 4);
      EXPECT_LE(
          bytes,
          std::max(std::min(kBlockRate * settings.blocks, kMemoryRate) * 400e-6, least) * 1.01);
    }
    uint64_t all = padding;
    for (const auto& each : sum.runs) all += each.count;
    ASSERT_EQ(covered, all);
  }
}

TEST(BoardCode, DiffersWhereAnythingDiffers) {
  std::map<uint64_t, int> seen;
  int count = 0;
  for (uint64_t sequence = 1; sequence < 40; ++sequence) {
    for (uint32_t segment = 0; segment < 10; ++segment) {
      for (uint64_t offset = 0; offset < 10; ++offset) {
        for (uint64_t bytes = 0; bytes < 10; ++bytes) {
          ++seen[code_of(sequence, {segment, offset * 512, bytes * 512})];
          ++count;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(count));
  EXPECT_EQ(seen.count(0), 0u);
}

}  // namespace
}  // namespace tide::test
