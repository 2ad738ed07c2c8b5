// A host model of multicast: the launches, the walk of blocks and threads, and the choice of pushes
// are those of the CUDA device; memory is an array per rank, and the switch a loop over them.
#include "shim/device/cuda/multicast_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "include/tide/error.h"
#include "shim/device/cuda/multicast_push.h"
#include "tests/device/ranks.h"

namespace tide::test {
namespace {

using device::Push;
using namespace device::cuda;  // NOLINT: the tested room

// Multicast memory of several ranks. Element e of rank q has a value that makes sums exact and
// different.
class Node {
 public:
  Node(int ranks, uint64_t elements) : memory_(ranks, std::vector<float>(elements)) {
    for (int q = 0; q < ranks; ++q) {
      for (uint64_t e = 0; e < elements; ++e) {
        memory_[q][e] = static_cast<float>((e * 7 + static_cast<uint64_t>(q) * 1000) % 4096);
      }
    }
  }

  uint64_t base() const { return kBase; }
  std::vector<float>& of(int rank) { return memory_[rank]; }
  float sum(uint64_t element) const {
    float total = 0;
    for (const auto& one : memory_) total += one.at(element);
    return total;
  }
  // A copy to the multicast address.
  void write(uint64_t at, const void* from, uint64_t bytes) {
    for (auto& one : memory_) {
      ASSERT_LE(at - kBase + bytes, one.size() * 4);
      std::memcpy(reinterpret_cast<char*>(one.data()) + (at - kBase), from, bytes);
    }
  }

 private:
  static constexpr uint64_t kBase = uint64_t{7} << 40;
  std::vector<std::vector<float>> memory_;
};

// What multimem instructions and the GPU's own memory do; faults where they would.
class Model {
 public:
  Model(const Node& node, const std::vector<float>& output)
      : stores(output.size()), node_(node), output_(reinterpret_cast<uint64_t>(output.data())) {}

  float reduce(uint64_t from) {
    EXPECT_EQ(from % 4, 0u);
    ++single;
    return node_.sum((from - node_.base()) / 4);
  }
  Quad reduce4(uint64_t from) {
    EXPECT_EQ(from % 16, 0u) << "the GPU would fault";
    ++vectors;
    Quad quad;
    for (int k = 0; k < 4; ++k) quad.value[k] = node_.sum((from - node_.base()) / 4 + k);
    return quad;
  }
  float load(uint64_t at) { return *reinterpret_cast<const float*>(at); }
  Quad load4(uint64_t at) { return {load(at), load(at + 4), load(at + 8), load(at + 12)}; }
  void store(uint64_t at, float value) {
    *reinterpret_cast<float*>(at) = value;
    ++stores.at((at - output_) / 4);
  }
  void store4(uint64_t at, const Quad& quad) {
    for (int k = 0; k < 4; ++k) store(at + 4 * k, quad.value[k]);
  }

  uint64_t single = 0;
  uint64_t vectors = 0;
  std::vector<int> stores;  // into each element of the output

 private:
  const Node& node_;
  const uint64_t output_;
};

void run(const std::vector<LoadReduceLaunch>& launches, int blocks, Model& model) {
  for (const LoadReduceLaunch& launch : launches) {
    const uint32_t grid = std::min<uint32_t>(static_cast<uint32_t>(blocks), launch.tiles);
    for (uint32_t block = 0; block < grid; ++block) {
      for (int thread = 0; thread < kLoadReduceThreads; ++thread) {
        load_reduce(launch, block, grid, thread, model);
      }
    }
  }
}

TEST(LoadReduceModel, EveryElementOnceAtOddStartsAndLengths) {
  Random random(5);
  for (int round = 0; round < 40; ++round) {
    const int ranks = 2 + static_cast<int>(random.below(7));
    const uint64_t elements = 60'000;
    Node node(ranks, elements);
    // The last 8 are a fence: nothing may be written there.
    std::vector<float> output(elements + 8, -1.0f);
    LoadReduce sum;
    sum.accumulate = random.below(2) == 1;
    sum.factor = random.below(2) == 1 ? 0.5f : 1.0f;
    std::vector<float> expected = output;
    std::vector<int> stores(output.size());
    uint64_t out = random.below(4);
    uint64_t from = random.below(4);
    while (true) {
      const uint64_t count = random.below(4) == 0 ? random.below(40'000) : random.below(50);
      if (out + count > elements || from + count > elements) break;
      sum.runs.push_back({output.data() + out, node.base() + 4 * from, count});
      for (uint64_t i = 0; i < count; ++i) {
        const float before = sum.accumulate ? -1.0f : 0.0f;
        expected[out + i] = (before + node.sum(from + i)) * sum.factor;
        stores[out + i] = 1;
      }
      out += count + random.below(3);
      from += count + random.below(3);
    }
    const LoadReduceSettings settings{.blocks = 1 + static_cast<int>(random.below(5)),
                                      .longest = std::chrono::microseconds(random.below(2) * 400)};
    Model model(node, output);
    run(plan_load_reduce(sum, settings), settings.blocks, model);
    ASSERT_EQ(output, expected) << "round " << round;
    uint64_t wanted = 0;
    for (const LoadReduceRun& run : sum.runs) wanted += run.count;
    ASSERT_EQ(model.stores, stores);
    ASSERT_EQ(model.single + 4 * model.vectors, wanted);
  }
}

TEST(LoadReduceModel, UsesVectorsWhereverTheyAreAligned) {
  for (uint64_t shift = 0; shift < 4; ++shift) {
    const uint64_t count = 3 * kLoadReduceTile + 5;
    Node node(4, count + 8);
    std::vector<float> output(count + 8);
    LoadReduce sum;
    sum.runs.push_back({output.data() + 1, node.base() + 4 * shift, count});
    Model model(node, output);
    run(plan_load_reduce(sum, {}), 4, model);
    EXPECT_LE(model.single, 6u) << "head and tail only";
    EXPECT_EQ(model.single + 4 * model.vectors, count);
  }
}

TEST(LoadReducePlan, CoversAllInShortLaunches) {
  Random random(6);
  for (int round = 0; round < 100; ++round) {
    LoadReduce sum;
    uint64_t all = 0;
    for (uint64_t r = random.below(400); r > 0; --r) {
      const uint64_t count = random.below(3) == 0 ? random.below(40'000'000) : random.below(1000);
      sum.runs.push_back(
          {reinterpret_cast<float*>(0x10000 + 4 * all), 0x70000000 + 4 * all, count});
      all += count;
    }
    const LoadReduceSettings settings{.blocks = 1 + static_cast<int>(random.below(40))};
    const double most =
        std::max(std::min(kLoadReduceBlockRate * settings.blocks, kLoadReduceLinkRate) * 400e-6 / 4,
                 1.0 * kLoadReduceTile * settings.blocks);
    uint64_t covered = 0;
    for (const LoadReduceLaunch& launch : plan_load_reduce(sum, settings)) {
      ASSERT_GT(launch.pieces, 0);
      ASSERT_LE(launch.pieces, kLoadReducePieces);
      uint64_t elements = 0;
      uint32_t tile = 0;
      for (int p = 0; p < launch.pieces; ++p) {
        const LoadReducePiece& piece = launch.piece[p];
        ASSERT_GT(piece.count, 0u);
        ASSERT_EQ(piece.tile, tile);
        tile += load_reduce_tiles(piece);
        ASSERT_EQ(piece.output, 0x10000 + 4 * (covered + elements));
        ASSERT_EQ(piece.from, 0x70000000 + 4 * (covered + elements));
        elements += piece.count;
      }
      ASSERT_EQ(launch.tiles, tile);
      EXPECT_LE(static_cast<double>(elements), most);
      covered += elements;
    }
    ASSERT_EQ(covered, all);
  }
}

TEST(LoadReducePlan, RefusesWhatTheGpuCannotRead) {
  LoadReduce sum;
  sum.runs.push_back({reinterpret_cast<float*>(0x1000), 0x2002, 4});
  EXPECT_THROW(plan_load_reduce(sum, {}), Error);
  sum.runs[0] = {reinterpret_cast<float*>(0x1001), 0x2000, 4};
  EXPECT_THROW(plan_load_reduce(sum, {}), Error);
  sum.runs[0] = {reinterpret_cast<float*>(0x1000), 0x2000, 4};
  EXPECT_THROW(plan_load_reduce(sum, {.blocks = 0}), Error);
  EXPECT_EQ(plan_load_reduce(sum, {}).size(), 1u);
}

TEST(MulticastPush, OnePlaceIsCommonOnlyWhenAllRanksGrantedIt) {
  const std::vector<Place> same(3, {2, 512, 1024});
  EXPECT_EQ(common_offset(same, 2), 512u);
  EXPECT_FALSE(common_offset(same, 1)) << "not multicast memory";
  EXPECT_FALSE(common_offset({}, 2));
  for (int q = 0; q < 3; ++q) {
    for (const Place other : {Place{1, 512, 1024}, Place{2, 0, 1024}, Place{2, 512, 512}}) {
      auto granted = same;
      granted[q] = other;
      EXPECT_FALSE(common_offset(granted, 2));
    }
  }
  EXPECT_FALSE(common_offset(std::vector<Place>(3, {2, 512, 0}), 2))
      << "an exchange without a slot";
}

TEST(MulticastPush, TakesWhatEveryRankGetsAlike) {
  const char memory[64] = {};
  std::vector<Push> pushes;
  for (int q : {2, 0, 1}) {
    pushes.push_back({q, memory, 0, 8});         // to all
    pushes.push_back({q, memory + 8, 100, 16});  // to all
    pushes.push_back({q, memory + 30, 200, 0});  // nothing
    pushes.push_back({q, memory + q, 300, 4});   // from elsewhere for each
  }
  pushes.push_back({0, memory, 400, 4});  // rank 1 does not get it
  pushes.push_back({2, memory, 400, 4});
  pushes.push_back({0, memory, 500, 4});  // rank 2 neither, but rank 0 twice
  pushes.push_back({0, memory, 500, 4});
  pushes.push_back({1, memory, 500, 4});
  const SplitPushes split = split_pushes(pushes, 3);
  ASSERT_EQ(split.to_all.size(), 2u);
  EXPECT_EQ(split.to_all[0].to, 0u);
  EXPECT_EQ(split.to_all[1].to, 100u);
  EXPECT_EQ(split.to_all[1].from, memory + 8);
  EXPECT_EQ(split.to_all[1].bytes, 16u);
  EXPECT_EQ(split.to_each.size(), 3u + 2u + 3u);
}

// What an all-gather and the sum after it do on a node, through the switch and without it.
TEST(MulticastPush, LeavesTheSameBytesAsPushesToEachRank) {
  Random random(8);
  for (int round = 0; round < 50; ++round) {
    const int ranks = 2 + static_cast<int>(random.below(7));
    const uint64_t shard = 1 + random.below(300);
    Node through(ranks, shard * ranks + 64);
    Node each = through;
    const uint64_t slot = 4 * random.below(16);
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<float> own(shard);
      for (float& value : own) value = static_cast<float>(random.below(1000));
      std::vector<Push> pushes;
      for (int q = 0; q < ranks; ++q) {
        const uint64_t cut = shard / 3;
        const uint64_t to = 4 * shard * rank;
        pushes.push_back({q, own.data(), to, 4 * cut});
        pushes.push_back({q, own.data() + cut, to + 4 * cut, 4 * (shard - cut)});
      }
      for (const Push& push : pushes) {
        std::memcpy(reinterpret_cast<char*>(each.of(push.peer).data()) + slot + push.to, push.from,
                    push.bytes);
      }
      const SplitPushes split = split_pushes(pushes, ranks);
      EXPECT_TRUE(split.to_each.empty());
      EXPECT_EQ(split.to_all.size(), shard < 3 ? 1u : 2u);
      for (const Push& push : split.to_all) {
        through.write(through.base() + slot + push.to, push.from, push.bytes);
      }
    }
    for (int q = 0; q < ranks; ++q) ASSERT_EQ(through.of(q), each.of(q));

    std::vector<float> output(shard);
    LoadReduce sum;
    sum.runs.push_back({output.data(), through.base() + slot, shard});
    Model model(through, output);
    run(plan_load_reduce(sum, {}), 4, model);
    for (uint64_t i = 0; i < shard; ++i) ASSERT_EQ(output[i], each.sum(slot / 4 + i));
  }
}

}  // namespace
}  // namespace tide::test
