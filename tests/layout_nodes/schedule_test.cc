// Every schedule for every M in 1..64 and L in 1..8.
#include "shim/layout/node_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "include/tide/error.h"

namespace tide::layout {
namespace {

constexpr Schedule kSchedules[] = {Schedule::kNearFirst, Schedule::kFarFirst, Schedule::kRing};

std::vector<std::vector<NodeRound>> all_rounds(Schedule schedule, int nodes) {
  std::vector<std::vector<NodeRound>> rounds;
  for (int n = 0; n < nodes; ++n) rounds.push_back(node_rounds(schedule, nodes, n));
  return rounds;
}

std::vector<int> list(const NodeShards& shards, int nodes) {
  std::vector<int> all;
  for (int i = 0; i < shards.count; ++i) all.push_back((shards.first + i * shards.stride) % nodes);
  return all;
}

TEST(Schedule, Names) {
  for (Schedule schedule : kSchedules) EXPECT_EQ(schedule_of(name_of(schedule)), schedule);
  try {
    schedule_of("doubling");
    FAIL() << "a name that there is not";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("near-first, far-first, ring"), std::string::npos);
  }
}

TEST(Schedule, NodesThatThereAreNot) {
  EXPECT_THROW(node_rounds(Schedule::kRing, 0, 0), Error);
  EXPECT_THROW(node_rounds(Schedule::kRing, 4, 4), Error);
  EXPECT_THROW(node_rounds(Schedule::kRing, 4, -1), Error);
}

TEST(Schedule, NumberOfRounds) {
  for (int nodes = 1; nodes <= 64; ++nodes) {
    const auto doubling = static_cast<size_t>(std::bit_width(static_cast<unsigned>(nodes - 1)));
    EXPECT_EQ(node_rounds(Schedule::kNearFirst, nodes, 0).size(), doubling);
    EXPECT_EQ(node_rounds(Schedule::kFarFirst, nodes, 0).size(), doubling);
    EXPECT_EQ(node_rounds(Schedule::kRing, nodes, 0).size(), static_cast<size_t>(nodes - 1));
  }
}

// "The Endgame of FSDP Communication": round d sends the first min(2^d, M - 2^d) node-shards that
// the node holds to node n - 2^d.
TEST(Schedule, NearFirstAsPublished) {
  for (int nodes = 2; nodes <= 64; ++nodes) {
    for (int n = 0; n < nodes; ++n) {
      int distance = 1;
      for (const NodeRound& round : node_rounds(Schedule::kNearFirst, nodes, n)) {
        EXPECT_EQ(round.send_to, (n - distance + nodes) % nodes);
        EXPECT_EQ(round.receive_from, (n + distance) % nodes);
        EXPECT_EQ(round.sends.first, n);
        EXPECT_EQ(round.sends.stride, 1);
        EXPECT_EQ(round.sends.count, std::min(distance, nodes - distance));
        distance *= 2;
      }
    }
  }
}

TEST(Schedule, FarFirstSendsTheLargestPiecesToNeighbours) {
  for (int nodes = 2; nodes <= 64; ++nodes) {
    const std::vector<NodeRound> rounds = node_rounds(Schedule::kFarFirst, nodes, 0);
    EXPECT_EQ(rounds.back().send_to, nodes - 1);
    int last_count = 0;
    for (const NodeRound& round : rounds) {
      EXPECT_GE(round.sends.count, last_count) << nodes;
      last_count = round.sends.count;
    }
  }
}

// What one sends is what the other one receives; a node sends to one and receives from one, sends
// only what it holds, and at the end holds everything, each node-shard received once.
TEST(Schedule, EveryShardArrivesOnceFromOneThatHoldsIt) {
  for (Schedule schedule : kSchedules) {
    for (int nodes = 1; nodes <= 64; ++nodes) {
      const auto rounds = all_rounds(schedule, nodes);
      std::vector<std::vector<bool>> holds(nodes, std::vector<bool>(nodes, false));
      for (int n = 0; n < nodes; ++n) holds[n][n] = true;
      for (size_t r = 0; r < rounds[0].size(); ++r) {
        const auto before = holds;
        std::vector<int> receivers(nodes, 0);
        for (int n = 0; n < nodes; ++n) {
          const NodeRound& mine = rounds[n][r];
          const NodeRound& theirs = rounds[mine.send_to][r];
          ASSERT_NE(mine.send_to, n);
          ASSERT_EQ(theirs.receive_from, n);
          ASSERT_EQ(list(mine.sends, nodes), list(theirs.receives, nodes));
          receivers[mine.send_to] += 1;
          for (int shard : list(mine.sends, nodes)) {
            ASSERT_TRUE(before[n][shard]) << name_of(schedule) << " M " << nodes << " round " << r;
            ASSERT_FALSE(holds[mine.send_to][shard])
                << name_of(schedule) << " M " << nodes << " round " << r;
            holds[mine.send_to][shard] = true;
          }
        }
        ASSERT_EQ(receivers, std::vector<int>(nodes, 1));
      }
      for (int n = 0; n < nodes; ++n) {
        ASSERT_EQ(holds[n], std::vector<bool>(nodes, true));
        const std::vector<int> arrivals = arrival_rounds(rounds[n], nodes, n);
        for (int shard = 0; shard < nodes; ++shard) {
          ASSERT_EQ(arrivals[shard] == -1, shard == n);
        }
      }
    }
  }
}

// All nodes of one rail, byte by byte: a range holds what arrived in the round that it names, and
// every byte of every shard of the rail arrives once, no other byte at all.
void check_ranges(Schedule schedule, int nodes, int local_ranks, int rail,
                  const GatherLayout& layout) {
  constexpr int kNever = -2;
  const auto rounds = all_rounds(schedule, nodes);
  std::vector<std::vector<int>> arrived(nodes, std::vector<int>(layout.slot, kNever));
  const auto for_each_byte = [&](int node, auto visit) {
    const int rank = node * local_ranks + rail;
    for (size_t p = 0; p < layout.pieces.size(); ++p) {
      const uint64_t start = layout.parameter_major(rank, p);
      for (uint64_t i = 0; i < layout.pieces[p].shard; ++i) visit(start + i);
    }
  };
  for (int n = 0; n < nodes; ++n) {
    for_each_byte(n, [&](uint64_t at) { arrived[n][at] = -1; });
  }
  for (size_t r = 0; r < rounds[0].size(); ++r) {
    for (int n = 0; n < nodes; ++n) {
      std::vector<int>& receiver = arrived[rounds[n][r].send_to];
      int last = -1;
      for (const NodeRange& range :
           node_ranges(layout, nodes, local_ranks, n, rail, rounds[n], r)) {
        ASSERT_GT(range.bytes, 0u);
        ASSERT_GE(range.after, last) << "what came first goes first";
        ASSERT_LT(range.after, static_cast<int>(r));
        last = range.after;
        for (uint64_t at = range.offset; at < range.offset + range.bytes; ++at) {
          ASSERT_EQ(arrived[n][at], range.after);
          ASSERT_EQ(receiver[at], kNever);
          receiver[at] = static_cast<int>(r);
        }
      }
    }
  }
  for (int n = 0; n < nodes; ++n) {
    uint64_t there = 0;
    for (int from = 0; from < nodes; ++from) {
      for_each_byte(from, [&](uint64_t at) {
        ASSERT_NE(arrived[n][at], kNever);
        ++there;
      });
    }
    const auto touched = static_cast<uint64_t>(
        std::count_if(arrived[n].begin(), arrived[n].end(), [](int r) { return r != kNever; }));
    ASSERT_EQ(touched, there);
  }
}

TEST(NodeRanges, EveryByteOnceForEveryMAndL) {
  std::mt19937 random(1);
  for (int nodes = 1; nodes <= 64; ++nodes) {
    for (int local_ranks = 1; local_ranks <= 8; ++local_ranks) {
      std::vector<uint64_t> shards(1 + random() % 3);
      for (uint64_t& shard : shards) shard = random() % 4;
      const GatherLayout layout = gather_layout(shards, nodes * local_ranks);
      const int rail = static_cast<int>(random() % static_cast<unsigned>(local_ranks));
      for (Schedule schedule : kSchedules) {
        ASSERT_NO_FATAL_FAILURE(check_ranges(schedule, nodes, local_ranks, rail, layout))
            << name_of(schedule) << " M " << nodes << " L " << local_ranks;
      }
    }
  }
}

TEST(NodeRanges, EveryRail) {
  const std::vector<uint64_t> shards = {3, 0, 130, 1};
  for (int rail = 0; rail < 8; ++rail) {
    for (Schedule schedule : kSchedules) {
      ASSERT_NO_FATAL_FAILURE(check_ranges(schedule, 5, 8, rail, gather_layout(shards, 40)));
    }
  }
}

// With one rank a node, the shards of successive nodes lie side by side.
TEST(NodeRanges, NeighboursThatArriveTogetherAreOneRange) {
  const std::vector<uint64_t> shards = {100, 7};
  const GatherLayout layout = gather_layout(shards, 8);
  const std::vector<NodeRound> rounds = node_rounds(Schedule::kNearFirst, 8, 0);
  // Round 2: own, of node 1 (round 0), of nodes 2 and 3 (round 1); two parameters each.
  const std::vector<NodeRange> ranges = node_ranges(layout, 8, 1, 0, 0, rounds, 2);
  ASSERT_EQ(ranges.size(), 6u);
  EXPECT_EQ(ranges[4].offset, 200u);
  EXPECT_EQ(ranges[4].bytes, 200u);
  EXPECT_EQ(ranges[4].after, 1);
}

TEST(NodeRanges, BadArguments) {
  const std::vector<uint64_t> shards = {8};
  const GatherLayout layout = gather_layout(shards, 8);
  const std::vector<NodeRound> rounds = node_rounds(Schedule::kRing, 4, 0);
  EXPECT_THROW(node_ranges(layout, 4, 3, 0, 0, rounds, 0), Error);
  EXPECT_THROW(node_ranges(layout, 4, 2, 0, 2, rounds, 0), Error);
  EXPECT_THROW(node_ranges(layout, 4, 2, 0, 0, rounds, 3), Error);
}

}  // namespace
}  // namespace tide::layout
