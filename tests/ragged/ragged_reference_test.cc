// All rows of planner_reference.tsv: shards with their proofs, and the baselines to the element.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "shim/cli/model_file.h"
#include "shim/layout/baseline_systems.h"
#include "tide/ragged.h"

namespace tide::ragged {
namespace {

using Row = std::map<std::string, std::string>;

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, '\t');) cells.push_back(cell);
  return cells;
}

std::vector<Row> reference() {
  std::ifstream file("tests/data/planner_reference.tsv");
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> columns = cells_of(line);
  std::vector<Row> rows;
  while (std::getline(file, line)) {
    std::vector<std::string> cells = cells_of(line);
    Row row;
    for (size_t i = 0; i < columns.size(); ++i) row[columns[i]] = cells.at(i);
    rows.push_back(row);
  }
  return rows;
}

int64_t number(const Row& row, const std::string& column) { return std::stoll(row.at(column)); }

Buffer plan_row(const Row& row) {
  cli::Model model = cli::read_model_file("tests/data/models/" + row.at("model") + ".yaml");
  for (Group& group : model.groups) {
    if (group.name != row.at("group")) continue;
    if (row.at("filter") == "experts") {
      std::erase_if(group.tensors, [](const Tensor& t) { return !is_expert(t.name); });
    }
    for (Tensor& tensor : group.tensors) {
      tensor.block = BlockPolicy{BlockPolicy::Kind::kRows, number(row, "rows_per_block"), 1};
    }
    Options options;
    options.devices = number(row, "devices");
    options.unit = number(row, "unit");
    return plan_group(group, options)[0];
  }
  throw std::runtime_error("no group " + row.at("group"));
}

TEST(Reference, ShardsAndBaselinesOfAllRows) {
  const std::vector<Row> rows = reference();
  ASSERT_EQ(rows.size(), 440u);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.at("model") + " " + row.at("group") + " " + row.at("filter") + " rows " +
                 row.at("rows_per_block") + " devices " + row.at("devices"));
    Buffer buffer = plan_row(row);
    EXPECT_EQ(check(buffer), "");
    EXPECT_TRUE(buffer.proof.minimal);
    EXPECT_EQ(int64_t(buffer.tensors.size()), number(row, "tensors"));
    EXPECT_EQ(buffer.numel, number(row, "numel"));
    // The reference stopped its scan after 3,000 steps, so a proven plan may be smaller yet.
    EXPECT_LE(buffer.shard, number(row, "shard_exact"));
    EXPECT_LE(buffer.shard, number(row, "shard_planned"));
    if (buffer.shard == number(row, "shard_exact")) {
      EXPECT_NEAR(buffer.padding_pct(), std::stod(row.at("padding_pct")), 5.1e-5);
    }
    for (const Baseline& baseline : baselines(buffer)) {
      EXPECT_EQ(baseline.shard, number(row, "shard_" + baseline.name)) << baseline.name;
      EXPECT_EQ(baseline.cut_blocks, number(row, "cut_" + baseline.name)) << baseline.name;
    }
    std::vector<Tensor> tensors;
    for (const Placed& placed : buffer.tensors) tensors.push_back(placed.tensor);
    EXPECT_EQ(megatron_layout(tensors, buffer.devices).chunk, number(row, "chunk_megatron"));
  }
}

// The example of Megatron-FSDP's own description.
TEST(Baselines, MegatronExample) {
  std::vector<Tensor> tensors;
  for (const Shape& shape : std::vector<Shape>{{2, 6}, {4, 4}, {4, 4}, {1, 2}, {1, 6}}) {
    tensors.push_back({"t" + std::to_string(tensors.size()), shape});
  }
  MegatronLayout layout = megatron_layout(tensors, 5);
  EXPECT_EQ(layout.chunk, 12);
  EXPECT_EQ(layout.shard, 12);
  EXPECT_EQ(layout.starts, (std::vector<int64_t>{0, 12, 32, 28, 48}));
}

// FSDP2 gives every rank a run of dimension 0, so a tensor with few slices pads whole slices.
TEST(Baselines, Fsdp2PadsWholeSlices) {
  Options options;
  options.devices = 4;
  Group group{"g", 1, {{"modulation", {1, 6, 5120}}, {"scalar", {}}}};
  std::vector<Baseline> all = baselines(plan_group(group, options)[0]);
  EXPECT_EQ(all[0].name, "fsdp2");
  EXPECT_EQ(all[0].shard, 6 * 5120 + 1);
}

TEST(Baselines, CutBlocksCountsEachBlockOnce) {
  EXPECT_EQ(cut_blocks(0, 100, 10, 25), 2);  // borders 25, 50, 75: 50 is between blocks
  EXPECT_EQ(cut_blocks(0, 100, 50, 10), 2);  // eight borders in two blocks
  EXPECT_EQ(cut_blocks(5, 100, 10, 25), 2);  // borders at 20, 45, 70 and 95 of the tensor
  EXPECT_EQ(cut_blocks(0, 100, 100, 100), 0);
  EXPECT_EQ(cut_blocks(7, 10, 1, 3), 0);
}

}  // namespace
}  // namespace tide::ragged
