// Owners for matrix optimizers: balance, determinism, and what stays where it is.
#include "shim/layout/owner_assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tide/error.h"

namespace tide::ragged {
namespace {

std::vector<Buffer> plan(const std::vector<Tensor>& tensors, int64_t devices) {
  Options options;
  options.devices = devices;
  options.unit = 1;
  return plan_group({"g", 1, tensors}, options);
}

TEST(Owners, WholeMatricesStayWhereTheyAre) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back({"w" + std::to_string(i), {8, 16}, "bf16", true, parse_policy("whole")});
  }
  std::vector<Buffer> buffers = plan(tensors, 4);
  Owners owners = assign_owners(buffers);
  ASSERT_EQ(owners.matrices.size(), 4u);
  EXPECT_EQ(owners.without_gather, 4);
  EXPECT_EQ(owners.moved_bytes, 0);
  EXPECT_DOUBLE_EQ(owners.imbalance, 1.0);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(owners.matrices[i].owner, i);
    EXPECT_FALSE(owners.matrices[i].needs_gather);
    EXPECT_DOUBLE_EQ(owners.matrices[i].cost, 8 * 16 * 8);
  }
}

// 3 matrices of 4 blocks over 2 devices: the middle one lies on both.
TEST(Owners, SpreadMatrixGoesToTheLeastLoaded) {
  std::vector<Tensor> tensors = {{"big", {4, 8}}, {"split", {4, 4}}, {"small", {4, 2}}};
  std::vector<Buffer> buffers = plan(tensors, 2);
  ASSERT_EQ(buffers[0].shard, 32);   // 4*8 | 4*4 + 4*2 with padding
  buffers[0].tensors[1].start = 24;  // as if the middle one crossed the border
  Owners owners = assign_owners(buffers);
  EXPECT_TRUE(owners.matrices[1].needs_gather);
  EXPECT_EQ(owners.matrices[1].owner, 1);  // device 0 has the heavy one
  // Half of 16 elements of bf16 to the owner, and back.
  EXPECT_EQ(owners.matrices[1].moved_bytes, 2 * 2 * 8);
  EXPECT_EQ(owners.without_gather, 2);
}

TEST(Owners, FusedExpertsAreABatchAndVectorsAreNone) {
  std::vector<Tensor> tensors = {{"bias", {64}}, {"experts", {6, 4, 10}}, {"conv", {3, 2, 2, 2}}};
  Owners owners = assign_owners(plan(tensors, 3));
  ASSERT_EQ(owners.matrices.size(), 7u);
  EXPECT_EQ(owners.matrices[0].name, "experts[0]");
  EXPECT_EQ(owners.matrices[5].name, "experts[5]");
  EXPECT_EQ(owners.matrices[0].rows, 4);
  EXPECT_EQ(owners.matrices[0].columns, 10);
  EXPECT_EQ(owners.matrices[6].rows, 3);
  EXPECT_EQ(owners.matrices[6].columns, 8);
}

TEST(Owners, LoadsAddUpAndAreBalanced) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 40; ++i) {
    tensors.push_back({"w" + std::to_string(i), {16 + i % 7, 24}});
  }
  std::vector<Buffer> buffers = plan(tensors, 8);
  Owners owners = assign_owners(buffers);
  double total = 0, heaviest = 0;
  int64_t moved = 0, whole = 0;
  std::vector<double> load(8);
  for (const Matrix& matrix : owners.matrices) {
    total += matrix.cost;
    heaviest = std::max(heaviest, matrix.cost);
    moved += matrix.moved_bytes;
    whole += !matrix.needs_gather;
    load[matrix.owner] += matrix.cost;
    EXPECT_EQ(matrix.needs_gather, matrix.moved_bytes > 0);
  }
  for (size_t d = 0; d < 8; ++d) EXPECT_DOUBLE_EQ(load[d], owners.load[d]);
  EXPECT_EQ(moved, owners.moved_bytes);
  EXPECT_EQ(whole, owners.without_gather);
  double most = *std::max_element(load.begin(), load.end());
  EXPECT_DOUBLE_EQ(owners.imbalance, most * 8 / total);
  // Greedy never ends more than one matrix above the mean.
  EXPECT_LE(most, total / 8 + heaviest);
}

TEST(Owners, EqualMatricesGoRoundInOrder) {
  // One device border through each of them: 3 equal matrices over 2 devices, no padding.
  std::vector<Tensor> tensors = {{"a", {2, 6}, "bf16", true, parse_policy("elements:1")}};
  std::vector<Buffer> one = plan(tensors, 2);
  std::vector<Buffer> layers(5, one[0]);
  Owners owners = assign_owners(layers);
  std::vector<int64_t> order;
  for (const Matrix& matrix : owners.matrices) order.push_back(matrix.owner);
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 0, 1, 0}));
  EXPECT_NEAR(owners.imbalance, 3 * 2 / 5.0, 1e-12);
}

TEST(Owners, DeviceCountsMustAgree) {
  std::vector<Tensor> tensors = {{"a", {2, 6}}};
  std::vector<Buffer> buffers = {plan(tensors, 2)[0], plan(tensors, 3)[0]};
  EXPECT_THROW(assign_owners(buffers), Error);
  EXPECT_TRUE(assign_owners({}).matrices.empty());
}

}  // namespace
}  // namespace tide::ragged
