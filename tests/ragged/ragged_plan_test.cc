// The planner against the published and measured vectors, and its errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tide/error.h"
#include "tide/ragged.h"

namespace tide::ragged {
namespace {

using Kind = BlockPolicy::Kind;

Group group_of(const std::vector<Shape>& shapes, std::optional<BlockPolicy> block = {}) {
  Group group{"g", 1, {}};
  for (size_t i = 0; i < shapes.size(); ++i) {
    group.tensors.push_back({"t" + std::to_string(i), shapes[i], "bf16", true, block});
  }
  return group;
}

// Elements and blocks in one dimension each.
Group flat_group(const std::vector<std::pair<int64_t, int64_t>>& tensors) {
  Group group{"g", 1, {}};
  for (auto [elements, block] : tensors) {
    group.tensors.push_back({"t" + std::to_string(group.tensors.size()),
                             {elements},
                             "bf16",
                             true,
                             BlockPolicy{Kind::kElements, block, 1}});
  }
  return group;
}

Options options_of(int64_t devices, int64_t unit) {
  Options options;
  options.devices = devices;
  options.unit = unit;
  return options;
}

Buffer plan_one(const Group& group, const Options& options) {
  std::vector<Buffer> buffers = plan_group(group, options);
  EXPECT_EQ(buffers.size(), 1u);
  EXPECT_EQ(check(buffers[0]), "");
  return buffers[0];
}

std::vector<int64_t> starts_of(const Buffer& buffer) {
  std::vector<int64_t> starts;
  for (const Placed& placed : buffer.tensors) starts.push_back(placed.start);
  return starts;
}

std::string error_of(const Group& group, const Options& options) {
  try {
    plan_group(group, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// A transformer layer of eight matrices and vectors over eight devices, as veScale-FSDP's public
// planner test has it.
const std::vector<Shape> kLayer = {{1536, 1536}, {256, 1536},  {256, 1536},
                                   {1536, 1536}, {8960, 1536}, {8960, 1536},
                                   {1536, 8960}, {1536},       {1536}};

TEST(PublishedVectors, LayerByElementsHasNoPadding) {
  EXPECT_EQ(
      plan_one(group_of(kLayer, BlockPolicy{Kind::kElements, 1, 1}), options_of(8, 1)).padding(),
      0);
}

TEST(PublishedVectors, LayerByElementsUnit2048) {
  EXPECT_EQ(
      plan_one(group_of(kLayer, BlockPolicy{Kind::kElements, 1, 1}), options_of(8, 2048)).padding(),
      13312);
}

TEST(PublishedVectors, LayerByRows) {
  Buffer buffer = plan_one(group_of(kLayer), options_of(8, 1));
  EXPECT_EQ(buffer.padding(), 82944);
  EXPECT_EQ(buffer.shard, 5859840);
}

TEST(PublishedVectors, LayerByRowsUnit2048) {
  EXPECT_EQ(plan_one(group_of(kLayer), options_of(8, 2048)).padding(), 1373184);
}

TEST(PublishedVectors, MixedBlocksOverThree) {
  Buffer buffer = plan_one(flat_group({{20, 4}, {6, 1}, {7, 1}}), options_of(3, 1));
  EXPECT_EQ(buffer.shard, 12);
}

TEST(PublishedVectors, TwoBlocksEach) {
  Buffer buffer = plan_one(flat_group({{24, 4}}), options_of(3, 1));
  EXPECT_EQ(buffer.shard, 8);
  for (int64_t device = 0; device < 3; ++device) {
    std::vector<Owned> held = owned(buffer, device);
    ASSERT_EQ(held.size(), 1u);
    EXPECT_EQ(held[0].end - held[0].begin, 8);
  }
}

TEST(PublishedVectors, MatrixAndVector) {
  EXPECT_EQ(plan_one(flat_group({{1536, 1}, {4096, 1}}), options_of(8, 1)).shard, 704);
}

// A case that the prefix search alone misses by a tenth.
TEST(ExactSearch, FindsWhatThePrefixSearchMisses) {
  Group group = flat_group({{160, 20}, {45, 15}, {132, 12}, {64, 16}});
  Options options = options_of(5, 1);
  options.exact_budget = 0;
  Buffer prefix = plan_one(group, options);
  EXPECT_EQ(prefix.shard, 93);
  EXPECT_FALSE(prefix.proof.minimal);
  options.exact_budget = 1'000'000;
  Buffer exact = plan_one(group, options);
  EXPECT_EQ(exact.shard, 84);
  EXPECT_TRUE(exact.proof.minimal);
  EXPECT_EQ(starts_of(exact), (std::vector<int64_t>{4, 168, 216, 348}));
}

// Feasible at 2 and 4, not at 3.
TEST(ExactSearch, FeasibilityIsNotMonotone) {
  EXPECT_EQ(plan_one(flat_group({{6, 2}}), options_of(4, 1)).shard, 2);
  EXPECT_EQ(plan_one(flat_group({{6, 2}}), options_of(4, 3)).shard, 6);
}

TEST(Buffers, OnePerDtypeAndRequiresGrad) {
  Group group = group_of({{64, 8}, {64, 8}, {64}, {32}});
  group.tensors[1].dtype = "torch.float32";
  group.tensors[2].requires_grad = false;
  std::vector<Buffer> buffers = plan_group(group, options_of(4, 0));
  ASSERT_EQ(buffers.size(), 3u);
  EXPECT_EQ(buffers[0].name, "g");
  EXPECT_EQ(buffers[1].name, "g/fp32");
  EXPECT_EQ(buffers[2].name, "g/frozen");
  EXPECT_EQ(buffers[0].tensors.size(), 2u);
  EXPECT_EQ(buffers[0].unit, 8);  // 16 bytes of bf16
  EXPECT_EQ(buffers[1].unit, 4);  // and of fp32
  EXPECT_FALSE(buffers[2].requires_grad);
  for (const Buffer& buffer : buffers) EXPECT_EQ(check(buffer), "");
}

TEST(Buffers, PerRowLength) {
  // Rows of 8192 and 28672: together no shard but a multiple of both blocks serves the long ones.
  Group layer = group_of({{8192, 8192},
                          {1024, 8192},
                          {1024, 8192},
                          {8192, 8192},
                          {28672, 8192},
                          {28672, 8192},
                          {8192, 28672},
                          {8192},
                          {8192}},
                         BlockPolicy{Kind::kRows, 32, 1});
  Options options = options_of(64, 8);
  std::vector<Buffer> together = plan_group(layer, options);
  ASSERT_EQ(together.size(), 1u);
  EXPECT_NEAR(together[0].padding_pct(), 9.8, 0.05);
  options.sub_buffers = SubBuffers::kOn;
  std::vector<Buffer> split = plan_group(layer, options);
  ASSERT_EQ(split.size(), 2u);
  EXPECT_EQ(split[0].name, "g/row8192");
  EXPECT_EQ(split[0].tensors.size(), 8u);  // the vectors fill up the largest
  EXPECT_EQ(split[1].name, "g/row28672");
  int64_t padding = split[0].padding() + split[1].padding();
  EXPECT_NEAR(100.0 * double(padding) / double(together[0].numel), 2.0, 0.05);
}

TEST(Buffers, AutoSplitsWhereItTakesLessTime) {
  Group layer = group_of({{4096, 96}, {96, 4096}}, BlockPolicy{Kind::kRows, 32, 1});
  Options options = options_of(16, 8);
  options.sub_buffers = SubBuffers::kAuto;
  options.cost = {1.0, 1e9};  // a second per collective: never worth it
  EXPECT_EQ(plan_group(layer, options).size(), 1u);
  options.cost = {0.0, 1e9};
  EXPECT_EQ(plan_group(layer, options).size(), 2u);
}

TEST(Orders, BestIsNeverLarger) {
  Group group = group_of({{40, 7}, {16}, {90, 12}, {40, 7}, {33, 5}, {90, 12}},
                         BlockPolicy{Kind::kRows, 4, 1});
  Options options = options_of(6, 1);
  std::vector<int64_t> shards;
  for (Order order : {Order::kRegistered, Order::kBlock, Order::kShape, Order::kBest}) {
    options.order = order;
    Buffer buffer = plan_one(group, options);
    shards.push_back(buffer.shard);
    std::vector<bool> seen(group.tensors.size());
    for (const Placed& placed : buffer.tensors) {
      EXPECT_EQ(placed.tensor.name, group.tensors[placed.index].name);
      seen[placed.index] = true;
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 6);
  }
  EXPECT_EQ(shards[3], *std::min_element(shards.begin(), shards.end()));
}

TEST(Orders, ByBlockAndByShape) {
  Group group = group_of({{4}, {8, 3}, {8, 5}, {9, 3}});
  Options options = options_of(2, 1);
  auto names = [&](Order order) {
    options.order = order;
    std::string all;
    for (const Placed& placed : plan_one(group, options).tensors) all += placed.tensor.name;
    return all;
  };
  EXPECT_EQ(names(Order::kBlock), "t2t1t3t0");
  EXPECT_EQ(names(Order::kShape), "t2t0t3t1");
}

TEST(Alignment, StartsAreAligned) {
  Group group = group_of({{13, 7}, {3}, {11, 5}, {1}, {40, 3}}, BlockPolicy{Kind::kRows, 2, 1});
  Options options = options_of(4, 1);
  options.alignment_bytes = 16;
  Buffer buffer = plan_one(group, options);
  EXPECT_EQ(buffer.alignment, 8);
  EXPECT_EQ(buffer.shard % 8, 0);
  for (const Placed& placed : buffer.tensors) EXPECT_EQ(placed.start % 8, 0) << placed.tensor.name;
}

TEST(Policies, BlockOfAShape) {
  auto block = [](const Shape& shape, const char* policy) {
    return block_elements({"t", shape, "bf16", true, parse_policy(policy)});
  };
  EXPECT_EQ(block({128, 2880, 5760}, "rows:1"), 5760);
  EXPECT_EQ(block({128, 2880, 5760}, "rows:128"), 128 * 5760);
  EXPECT_EQ(block({128, 2880, 5760}, "dim0:1"), 2880 * 5760);
  EXPECT_EQ(block({4096, 1024}, "tiles:32x32"), 32 * 1024);
  EXPECT_EQ(block({8, 96, 64}, "tiles:32x32"), 32 * 64);    // 32 divides 96: tiles line up
  EXPECT_EQ(block({8, 100, 64}, "tiles:32x32"), 100 * 64);  // else whole matrices
  EXPECT_EQ(block({8, 100, 64}, "whole"), 8 * 100 * 64);
  EXPECT_EQ(block({10, 4}, "rows:128"), 40);  // at most the tensor
  EXPECT_EQ(block({4096}, "rows:32"), 1);
  EXPECT_EQ(block({4096}, "elements:256"), 256);
  EXPECT_EQ(block({}, "rows:32"), 1);
  EXPECT_EQ(block({4, 4}, "rows:9223372036854775807"), 16);
  for (const char* text : {"rows:32", "elements:5", "dim0:2", "tiles:128x64", "whole"}) {
    EXPECT_EQ(to_string(parse_policy(text)), text);
  }
  for (const char* text : {"", "rows", "rows:", "rows:0", "rows:-1", "rows:2x", "tiles:3",
                           "tiles:0x4", "lines:3", "whole:1", "rows:99999999999999999999"}) {
    EXPECT_THROW(parse_policy(text), Error) << text;
  }
}

TEST(Scale, OneDeviceAndMoreDevicesThanElements) {
  EXPECT_EQ(plan_one(group_of({{3, 5}, {7}}), options_of(1, 1)).shard, 22);
  Buffer buffer = plan_one(group_of({{3, 5}}), options_of(kMaxDevices, 1));
  EXPECT_EQ(buffer.shard, 5);  // a row each for three, nothing for the others
  EXPECT_TRUE(owned(buffer, kMaxDevices - 1).empty());
}

TEST(Errors, NameWhatIsWrong) {
  Options options = options_of(8, 0);
  EXPECT_EQ(error_of(group_of({{4, 0}}), options).find("tensor t0 has a dimension of 0"), 0u);
  Group twins = group_of({{4}, {4}});
  twins.tensors[1].name = "t0";
  EXPECT_NE(error_of(twins, options).find("two tensors named t0"), std::string::npos);
  EXPECT_NE(error_of(group_of({}), options).find("group g has no tensors"), std::string::npos);
  Group odd = group_of({{4}});
  odd.tensors[0].dtype = "fp9";
  EXPECT_NE(error_of(odd, options).find("unknown dtype 'fp9'"), std::string::npos);
  for (int64_t devices : {int64_t{0}, int64_t{-3}, kMaxDevices + 1, INT64_MAX}) {
    EXPECT_NE(error_of(group_of({{4}}), options_of(devices, 0)).find("cannot plan for"),
              std::string::npos);
  }
  EXPECT_NE(error_of(group_of({{4}}), options_of(4, -1)).find("negative"), std::string::npos);
}

TEST(Errors, OverflowIsReported) {
  const int64_t big = int64_t{1} << 32;
  EXPECT_NE(error_of(group_of({{big, big}}), options_of(8, 0))
                .find("element count of tensor t0 does not fit in 64 bits"),
            std::string::npos);
  EXPECT_NE(error_of(group_of({{big, big / 4}, {big, big / 4}}), options_of(8, 0))
                .find("does not fit in 64 bits"),
            std::string::npos);
  // The elements fit, but no multiple of the unit over all devices does.
  EXPECT_NE(error_of(group_of({{16}}), options_of(1024, int64_t{1} << 60)).find("64 bits"),
            std::string::npos);
  // Blocks whose LCM does not fit are no error: such a shard is never the best.
  EXPECT_GT(plan_one(flat_group({{999999999989, 999999937},
                                 {999999999961, 999999893},
                                 {999999999959, 999999797}}),
                     options_of(2, 1))
                .shard,
            0);
}

TEST(Checker, CatchesEveryBrokenRule) {
  const Buffer good =
      plan_one(flat_group({{160, 20}, {45, 15}, {132, 12}, {64, 16}}), options_of(5, 1));
  auto broken = [&](auto change) {
    Buffer buffer = good;
    change(buffer);
    return check(buffer);
  };
  EXPECT_EQ(broken([](Buffer&) {}), "");
  EXPECT_NE(broken([](Buffer& b) { b.tensors[1].start = 150; }).find("overlaps"),
            std::string::npos);
  EXPECT_NE(broken([](Buffer& b) { b.tensors[0].start = 3; }).find("border cuts"),
            std::string::npos);
  EXPECT_NE(broken([](Buffer& b) { b.tensors[3].start += 16; }).find("cuts"), std::string::npos);
  EXPECT_NE(broken([](Buffer& b) { b.devices = 4; }), "");
  EXPECT_NE(broken([](Buffer& b) { b.unit = 5; }).find("multiple of the unit"), std::string::npos);
  EXPECT_NE(broken([](Buffer& b) {
              b.alignment = 8;
              b.unit = 12;
            }).find("alignment"),
            std::string::npos);
  EXPECT_NE(broken([](Buffer& b) { b.numel += 1; }).find("element count"), std::string::npos);
  EXPECT_NE(broken([](Buffer& b) { b.tensors[2].numel -= 1; }).find("element count"),
            std::string::npos);
  EXPECT_NE(broken([](Buffer& b) { b.proof.lower_bound = 84; }).find("too high"),
            std::string::npos);
  EXPECT_NE(broken([](Buffer& b) { b.proof.step = 7; }).find("step"), std::string::npos);
}

TEST(Checker, RefutesAFalseClaimOfMinimality) {
  Options options = options_of(5, 1);
  options.exact_budget = 0;
  Buffer prefix = plan_one(flat_group({{160, 20}, {45, 15}, {132, 12}, {64, 16}}), options);
  prefix.proof.minimal = true;
  EXPECT_EQ(check(prefix), "a smaller shard holds the tensors");
}

}  // namespace
}  // namespace tide::ragged
