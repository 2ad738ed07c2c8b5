#include "shim/layout/parameter_major.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "include/tide/error.h"

namespace tide::layout {
namespace {

// collectives.md, section 1: shards 2, 1, 3 MB, W = 4, rank 1, second parameter.
TEST(GatherLayout, WorkedExample) {
  constexpr uint64_t kMb = 1 << 20;
  const std::vector<uint64_t> shards = {2 * kMb, 1 * kMb, 3 * kMb};
  const GatherLayout layout = gather_layout(shards, 4);
  EXPECT_EQ(layout.rank_major(1, 1), 8 * kMb);
  EXPECT_EQ(layout.parameter_major(1, 1), 9 * kMb);
  EXPECT_EQ(layout.shard, 6 * kMb);
  EXPECT_EQ(layout.slot, 24 * kMb);
}

TEST(GatherLayout, ParametersStartAligned) {
  const std::vector<uint64_t> shards = {2, 0, 514, 1};
  const GatherLayout layout = gather_layout(shards, 3);
  for (const GatherPiece& piece : layout.pieces) EXPECT_EQ(piece.base % kAlignment, 0u);
  EXPECT_EQ(layout.pieces[1].base, layout.pieces[2].base);  // an empty parameter takes no room
  EXPECT_EQ(layout.slot % kAlignment, 0u);
}

// What FSDP2's copy-out makes of a rank-major buffer must be what the moves make of the shards.
TEST(GatherMoves, EqualCopyInAllGatherCopyOut) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int world = 1 + random() % 64;
    std::vector<uint64_t> shards(random() % 9);
    for (uint64_t& shard : shards) shard = random() % 40;
    const GatherLayout layout = gather_layout(shards, world);

    std::vector<uint8_t> rank_major(layout.shard * world);
    for (uint8_t& byte : rank_major) byte = static_cast<uint8_t>(random());

    std::vector<std::vector<uint8_t>> slots(world, std::vector<uint8_t>(layout.slot, 0));
    std::vector<std::vector<int>> writes(world, std::vector<int>(layout.slot, 0));
    for (int rank = 0; rank < world; ++rank) {
      bool first = true;
      for (const GatherMove& move : gather_moves(layout, rank)) {
        ASSERT_EQ(move.from, rank);
        if (first) {
          ASSERT_EQ(move.to, (rank + 1) % world) << "staggered";
        }
        first = false;
        for (uint64_t i = 0; i < move.bytes; ++i) {
          slots[move.to][move.offset + i] = rank_major[layout.rank_major(rank, move.piece) + i];
          writes[move.to][move.offset + i] += 1;
        }
      }
    }
    for (int to = 0; to < world; ++to) {
      for (size_t p = 0; p < shards.size(); ++p) {
        for (int rank = 0; rank < world; ++rank) {
          for (uint64_t i = 0; i < shards[p]; ++i) {
            const uint64_t at = layout.pieces[p].base + rank * shards[p] + i;
            ASSERT_EQ(slots[to][at], rank_major[layout.rank_major(rank, p) + i]);
            ASSERT_EQ(writes[to][at], 1);
          }
        }
      }
    }
  }
}

TEST(GatherLayout, RejectsWhatCannotBe) {
  const std::vector<uint64_t> huge = {uint64_t{1} << 62};
  EXPECT_THROW(gather_layout(huge, 4), Error);
  const std::vector<uint64_t> two = {uint64_t{1} << 62, uint64_t{1} << 62};
  EXPECT_THROW(gather_layout(two, 1), Error);
  EXPECT_THROW(gather_layout({}, 0), Error);
}

// FSDP2 pads dimension 0 to a multiple of W and gives rank r rows [r * k, (r + 1) * k).
TEST(ReduceRuns, EqualChunkCat) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const int world = 1 + random() % 16;
    std::vector<Gradient> gradients(1 + random() % 6);
    for (Gradient& g : gradients) g = {.rows = 1 + random() % 20, .row = 1 + random() % 5};
    const ReduceLayout layout = reduce_layout(gradients, world);

    uint64_t out = 0;
    std::vector<std::vector<int>> covered;
    for (const Gradient& g : gradients) covered.emplace_back(g.rows * g.row, 0);
    for (const Gradient& g : gradients) out += (g.rows + world - 1) / world * g.row;
    ASSERT_EQ(layout.out, out);

    for (int owner = 0; owner < world; ++owner) {
      std::vector<int> filled(layout.out, 0);
      for (const ReduceRun& run : reduce_runs(layout, owner)) {
        const Gradient& g = gradients[run.piece];
        const uint64_t rows = (g.rows + world - 1) / world;
        ASSERT_EQ(run.from, owner * rows * g.row);
        for (uint64_t i = 0; i < run.count; ++i) {
          covered[run.piece][run.from + i] += 1;
          filled[run.out + i] += 1;
        }
      }
      for (const auto& [from, count] : reduce_padding(layout, owner))
        for (uint64_t i = 0; i < count; ++i) filled[from + i] += 1;
      ASSERT_EQ(filled, std::vector<int>(layout.out, 1)) << "every output element exactly once";
    }
    for (const auto& gradient : covered)
      ASSERT_EQ(gradient, std::vector<int>(gradient.size(), 1)) << "every gradient element once";
  }
}

TEST(ReduceRuns, FewerRowsThanRanks) {
  const std::vector<Gradient> gradients = {{.rows = 2, .row = 3}, {.rows = 4, .row = 1}};
  const ReduceLayout layout = reduce_layout(gradients, 4);
  EXPECT_EQ(layout.out, 4u);
  ASSERT_EQ(reduce_runs(layout, 1).size(), 2u);
  ASSERT_EQ(reduce_runs(layout, 3).size(), 1u);  // rank 3 has no row of the first gradient
  EXPECT_EQ(reduce_runs(layout, 3)[0].out, 3u);
  const std::vector<std::pair<uint64_t, uint64_t>> padding = {{0, 3}};
  EXPECT_EQ(reduce_padding(layout, 3), padding);
}

TEST(ReduceLayout, RejectsWhatCannotBe) {
  const std::vector<Gradient> huge = {{.rows = uint64_t{1} << 40, .row = uint64_t{1} << 40}};
  EXPECT_THROW(reduce_layout(huge, 2), Error);
  EXPECT_THROW(reduce_layout({}, -1), Error);
}

}  // namespace
}  // namespace tide::layout
