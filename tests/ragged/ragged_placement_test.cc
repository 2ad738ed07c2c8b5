// What a device owns, RaggedShard, boxes and redistribution, against element-by-element truth.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tide/error.h"
#include "tide/ragged.h"

namespace tide::ragged {
namespace {

Options options_of(int64_t devices, SubBuffers sub_buffers = SubBuffers::kOff) {
  Options options;
  options.devices = devices;
  options.unit = 1;
  options.sub_buffers = sub_buffers;
  return options;
}

BlockPolicy rows(int64_t n) { return {BlockPolicy::Kind::kRows, n, 1}; }

Group sample() {
  return {"g",
          1,
          {{"a", {6, 5}, "bf16", true, rows(2)},
           {"b", {7}},
           {"c", {2, 3, 4}, "bf16", true, rows(1)},
           {"d", {9, 8}, "bf16", true, rows(3)},
           {"e", {5, 5}, "bf16", true, BlockPolicy{BlockPolicy::Kind::kWhole, 1, 1}}}};
}

TEST(Owned, CoversEveryElementOnce) {
  for (int64_t devices : {1, 2, 3, 5, 8, 40}) {
    Buffer buffer = plan_group(sample(), options_of(devices))[0];
    std::map<size_t, std::set<int64_t>> seen;
    for (int64_t device = 0; device < devices; ++device) {
      int64_t end = 0;
      for (const Owned& piece : owned(buffer, device)) {
        EXPECT_GE(piece.offset, end);
        end = piece.offset + piece.end - piece.begin;
        EXPECT_LE(end, buffer.shard);
        const Placed& placed = buffer.tensors[piece.tensor];
        EXPECT_EQ(placed.start + piece.begin, device * buffer.shard + piece.offset);
        EXPECT_EQ(piece.begin % placed.block, 0) << "a block is cut";
        for (int64_t i = piece.begin; i < piece.end; ++i) {
          EXPECT_TRUE(seen[piece.tensor].insert(i).second);
        }
      }
    }
    for (size_t t = 0; t < buffer.tensors.size(); ++t) {
      EXPECT_EQ(int64_t(seen[t].size()), buffer.tensors[t].numel);
    }
  }
}

TEST(RaggedShardOf, UnitsAndDimensions) {
  for (int64_t devices : {1, 3, 5, 8, 40}) {
    Buffer buffer = plan_group(sample(), options_of(devices))[0];
    for (size_t t = 0; t < buffer.tensors.size(); ++t) {
      RaggedShard placement = ragged_shard(buffer, t);
      const Placed& placed = buffer.tensors[t];
      ASSERT_EQ(int64_t(placement.local_units.size()), devices);
      int64_t units = 0, holders = 0;
      for (int64_t share : placement.local_units) {
        EXPECT_GE(share, 0);
        units += share;
        holders += share > 0;
      }
      ASSERT_EQ(placed.numel % units, 0);
      for (int64_t device = 0; device < devices; ++device) {
        int64_t held = 0;
        for (const Owned& piece : owned(buffer, device)) {
          if (piece.tensor == t) held = piece.end - piece.begin;
        }
        EXPECT_EQ(placement.local_units[device] * (placed.numel / units), held);
      }
      // The dimensions that are not shared out make slices that no border cuts.
      int64_t slice = 1;
      for (size_t d = size_t(placement.dims); d < placed.tensor.shape.size(); ++d) {
        slice *= placed.tensor.shape[d];
      }
      EXPECT_EQ(placed.numel / units % slice, 0);
      EXPECT_EQ(placement.dims == 0, holders == 1) << placed.tensor.name;
    }
  }
}

TEST(RaggedShardOf, ThreeRowsOverTwoDevices) {
  Group group{"g", 1, {{"w", {3, 4}}}};
  Buffer buffer = plan_group(group, options_of(2))[0];
  RaggedShard placement = ragged_shard(buffer, 0);
  EXPECT_EQ(placement.dims, 1);
  std::vector<int64_t> units = placement.local_units;
  std::sort(units.begin(), units.end());
  EXPECT_EQ(units, (std::vector<int64_t>{1, 2}));
}

TEST(MeshLocal, GranularityPerDimension) {
  Tensor tensor{"w", {8, 12, 10}, "bf16", true, rows(4)};
  // Shard(0): [4, 12, 10], local ranges are contiguous in the global tensor.
  MeshLocal first = mesh_local(tensor, 0, 2);
  EXPECT_EQ(first.tensor.shape, (Shape{4, 12, 10}));
  EXPECT_EQ(first.block, 40);
  // Shard(1): [8, 6, 10], whole slices of dimension 0: LCM of 40 and 60.
  MeshLocal second = mesh_local(tensor, 1, 2);
  EXPECT_EQ(second.tensor.shape, (Shape{8, 6, 10}));
  EXPECT_EQ(second.block, 120);
  // Shard(2): [8, 12, 5], whole rows: LCM of 20 and 5.
  MeshLocal third = mesh_local(tensor, 2, 2);
  EXPECT_EQ(third.block, 20);
  // Never more than the local tensor.
  tensor.block = rows(96);
  EXPECT_EQ(mesh_local(tensor, 1, 2).block, 480);
  EXPECT_THROW(mesh_local(tensor, 3, 2), Error);
  EXPECT_THROW(mesh_local(tensor, 1, 5), Error);
  EXPECT_THROW(mesh_local(tensor, 1, 0), Error);
}

// Local ranges on the granularity, of all ranks of the other mesh dimension, are boxes of the
// global tensor and cover it once.
TEST(MeshLocal, RangesBecomeGlobalBoxes) {
  const Tensor tensor{"w", {6, 4, 5}, "bf16", true, rows(1)};
  for (size_t dim : {0, 1, 2}) {
    const int64_t mesh_size = dim == 0 ? 3 : dim == 1 ? 2 : 5;
    MeshLocal local = mesh_local(tensor, dim, mesh_size);
    std::set<Shape> seen;
    for (int64_t rank = 0; rank < mesh_size; ++rank) {
      for (int64_t begin = 0; begin < numel(local.tensor); begin += local.block) {
        int64_t end = std::min(begin + local.block, numel(local.tensor));
        for (const Box& piece : boxes(local.tensor.shape, begin, end)) {
          Box box = to_global(piece, dim, rank, local.tensor.shape[dim]);
          for (int64_t i = 0; i < box.size[0]; ++i) {
            for (int64_t j = 0; j < box.size[1]; ++j) {
              for (int64_t k = 0; k < box.size[2]; ++k) {
                Shape at{box.offset[0] + i, box.offset[1] + j, box.offset[2] + k};
                for (size_t d = 0; d < 3; ++d) ASSERT_LT(at[d], tensor.shape[d]);
                EXPECT_TRUE(seen.insert(at).second);
              }
            }
          }
        }
      }
    }
    EXPECT_EQ(int64_t(seen.size()), numel(tensor));
  }
}

// Flat indices of a box, in order.
std::vector<int64_t> elements_of(const Box& box, const Shape& shape) {
  std::vector<int64_t> result{0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    for (int64_t base : result) {
      for (int64_t i = 0; i < box.size[d]; ++i) {
        next.push_back(base * shape[d] + box.offset[d] + i);
      }
    }
    result = std::move(next);
  }
  return result;
}

TEST(Boxes, EveryRangeOfSmallShapes) {
  for (const Shape& shape : std::vector<Shape>{
           {}, {1}, {7}, {3, 4}, {1, 5}, {5, 1}, {2, 3, 4}, {3, 1, 4}, {2, 2, 3, 2}, {1, 1, 1}}) {
    int64_t total = numel({"t", shape});
    for (int64_t begin = 0; begin <= total; ++begin) {
      for (int64_t end = begin; end <= total; ++end) {
        std::vector<Box> pieces = boxes(shape, begin, end);
        EXPECT_LE(pieces.size(), shape.empty() ? 1 : 2 * shape.size() - 1);
        std::vector<int64_t> covered;
        for (const Box& box : pieces) {
          ASSERT_EQ(box.size.size(), shape.size());
          for (int64_t element : elements_of(box, shape)) covered.push_back(element);
        }
        std::vector<int64_t> expected;
        for (int64_t i = begin; i < end; ++i) expected.push_back(i);
        ASSERT_EQ(covered, expected);
      }
    }
  }
  EXPECT_THROW(boxes({2, 3}, 0, 7), Error);
  EXPECT_THROW(boxes({2, 3}, -1, 2), Error);
  EXPECT_THROW(boxes({2, 3}, 3, 2), Error);
}

// Moves data by the list and compares every element.
void check_moves(const std::vector<Buffer>& from, const std::vector<Buffer>& to) {
  using Place = std::tuple<size_t, int64_t, int64_t>;  // buffer, device, offset in the shard
  auto fill = [](const std::vector<Buffer>& buffers) {
    std::map<Place, std::pair<int64_t, int64_t>> contents;  // -> (tensor, element)
    for (size_t b = 0; b < buffers.size(); ++b) {
      for (int64_t device = 0; device < buffers[b].devices; ++device) {
        for (const Owned& piece : owned(buffers[b], device)) {
          for (int64_t i = piece.begin; i < piece.end; ++i) {
            contents[{b, device, piece.offset + i - piece.begin}] = {
                buffers[b].tensors[piece.tensor].index, i};
          }
        }
      }
    }
    return contents;
  };
  auto source = fill(from);
  std::map<Place, std::pair<int64_t, int64_t>> target;
  for (const Move& move : redistribute(from, to)) {
    ASSERT_LT(move.begin, move.end);
    for (int64_t i = 0; i < move.end - move.begin; ++i) {
      auto element = source.at({move.from_buffer, move.from_device, move.from_offset + i});
      EXPECT_EQ(element, std::pair(move.index, move.begin + i));
      EXPECT_TRUE(target.emplace(Place{move.to_buffer, move.to_device, move.to_offset + i}, element)
                      .second);
    }
  }
  EXPECT_EQ(target, fill(to));
}

TEST(Redistribute, BetweenSizesOrdersAndSubBuffers) {
  Group group = sample();
  Options by_block = options_of(3);
  by_block.order = Order::kBlock;
  const std::vector<std::vector<Buffer>> plans = {
      plan_group(group, options_of(1)), plan_group(group, options_of(4)),
      plan_group(group, options_of(7)), plan_group(group, by_block),
      plan_group(group, options_of(4, SubBuffers::kOn))};
  EXPECT_GT(plans[4].size(), 1u);
  for (const auto& from : plans) {
    for (const auto& to : plans) check_moves(from, to);
  }
}

TEST(Redistribute, RefusesOtherTensors) {
  Group group = sample(), shorter = sample(), other = sample();
  shorter.tensors.pop_back();
  other.tensors[1].shape = {8};
  auto plan = [](const Group& g) { return plan_group(g, options_of(3)); };
  EXPECT_THROW(redistribute(plan(group), plan(shorter)), Error);
  EXPECT_THROW(redistribute(plan(shorter), plan(group)), Error);
  EXPECT_THROW(redistribute(plan(group), plan(other)), Error);
}

}  // namespace
}  // namespace tide::ragged
