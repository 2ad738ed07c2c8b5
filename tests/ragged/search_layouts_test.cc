// The group-size search on real models, and its arithmetic on one small enough to do by hand.
#include "shim/layout/search_layouts.h"

#include <gtest/gtest.h>

#include "shim/cli/model_file.h"
#include "tide/error.h"

namespace tide::ragged {
namespace {

SearchRequest request_for(const std::string& model, int64_t gpus, int64_t rows) {
  SearchRequest request;
  request.groups = cli::read_model_file("tests/data/models/" + model + ".yaml").groups;
  request.gpus = gpus;
  request.rows = rows;
  return request;
}

TEST(Search, GptOss120bAt1024Gpus) {
  SearchResult result = search_layouts(request_for("gpt_oss_120b", 1024, 128));
  const Candidate& plain = result.candidates[result.plain];
  EXPECT_EQ(plain.fsdp, 1024);
  EXPECT_EQ(plain.rows, 128);
  EXPECT_EQ(plain.experts, ExpertForm::kFused);
  EXPECT_NEAR(plain.block_padding_pct, 18.4774, 1e-3);

  ASSERT_TRUE(result.recommended);
  const Candidate& best = result.candidates[*result.recommended];
  EXPECT_LT(best.worst_padding_pct(), 3.0);
  EXPECT_EQ(best.rows, 128);
  EXPECT_EQ(best.cut_blocks, 0);
  EXPECT_LE(best.memory.total(), 64.0 * (1 << 30));
  EXPECT_GT(best.memory.total(), plain.memory.total());  // its price
  EXPECT_LT(best.wire_bytes, plain.wire_bytes);
  EXPECT_NE(result.reason.find("at most 3 %"), std::string::npos);

  // Smaller groups alone are enough; staying at 1,024 needs smaller blocks, which the price shows.
  ASSERT_GE(result.remedies.size(), 2u);
  EXPECT_LT(result.candidates[result.remedies[0]].fsdp, 1024);
  EXPECT_EQ(result.candidates[result.remedies[0]].cut_blocks, 0);
  EXPECT_EQ(result.candidates[result.remedies[1]].fsdp, 1024);
  EXPECT_GT(result.candidates[result.remedies[1]].cut_blocks, 0);
  for (size_t i : result.remedies) EXPECT_LE(result.candidates[i].worst_padding_pct(), 3.0);
}

TEST(Search, ParetoFrontIsAFront) {
  SearchResult result = search_layouts(request_for("llama3_1_70b", 256, 32));
  std::vector<Candidate> front;
  for (const Candidate& c : result.candidates) {
    if (c.pareto) front.push_back(c);
  }
  ASSERT_GT(front.size(), 3u);
  auto as_good = [](const Candidate& a, const Candidate& b, double slack) {
    return a.cut_blocks <= b.cut_blocks && a.seconds <= slack * b.seconds &&
           a.memory.total() <= slack * b.memory.total();
  };
  for (const Candidate& c : result.candidates) {
    bool matched = c.pareto;
    for (const Candidate& f : front) matched = matched || as_good(f, c, 1.01);
    EXPECT_TRUE(matched) << describe(c);
  }
  for (const Candidate& a : front) {
    for (const Candidate& b : front) {
      EXPECT_FALSE(&a != &b && as_good(a, b, 0.99)) << describe(a) << " beats " << describe(b);
    }
  }
}

TEST(Search, DenseModelHasNoExpertChoices) {
  SearchResult result = search_layouts(request_for("llama3_1_8b", 64, 32));
  for (const Candidate& c : result.candidates) {
    EXPECT_FALSE(c.experts);
    EXPECT_FALSE(c.own_group);
    EXPECT_DOUBLE_EQ(c.padding_pct, c.block_padding_pct);  // blocks on every tensor's buffer
  }
}

TEST(Search, PerExpertModelIsPlainAsItIs) {
  SearchRequest request = request_for("deepseek_v3_671b", 64, 128);
  SearchResult result = search_layouts(request);
  EXPECT_EQ(result.candidates[result.plain].experts, ExpertForm::kPerExpert);
  // 671 billion parameters do not fit 64 GPUs of 64 GiB; the reason says what they would take.
  EXPECT_FALSE(result.recommended);
  EXPECT_NE(result.reason.find("fits 64.0 GiB per GPU; the least is"), std::string::npos);
}

// One group of 2 x 1,024 bf16 elements, four times; 4 GPUs in two nodes.
TEST(Search, ArithmeticByHand) {
  SearchRequest request;
  request.groups = {{"layer", 4, {{"a", {32, 32}}, {"b", {32, 32}}}}};
  request.gpus = 4;
  request.gpus_per_node = 2;
  request.within_node = {1.0, 100};
  request.between_nodes = {10.0, 10};
  SearchResult result = search_layouts(request);
  auto find = [&](int64_t fsdp) {
    for (const Candidate& c : result.candidates) {
      if (c.fsdp == fsdp && !c.sub_buffers) return c;
    }
    return Candidate{};
  };
  const Candidate four = find(4), two = find(2), one = find(1);
  // Shard 512 elements of 2 bytes; parameters and gradients in bf16, 12 bytes of AdamW.
  EXPECT_DOUBLE_EQ(four.memory.parameters, 4 * 512 * 2);
  EXPECT_DOUBLE_EQ(four.memory.gradients, 4 * 512 * 2);
  EXPECT_DOUBLE_EQ(four.memory.optimizer, 4 * 512 * 12);
  EXPECT_DOUBLE_EQ(four.memory.gathered, 3 * 2048 * 2);
  EXPECT_EQ(four.collectives, 4 * 3);
  EXPECT_DOUBLE_EQ(four.wire_bytes, 12 * 3 * 512 * 2);
  EXPECT_DOUBLE_EQ(four.seconds, 12 * (10.0 + 3 * 512 * 2 / 10.0));
  EXPECT_EQ(four.replicas, 1);
  // Two in a node, two replicas across nodes: all-reduce of the shard moves it once per GPU.
  EXPECT_EQ(two.replicas, 2);
  EXPECT_EQ(two.collectives, 4 * 4);
  EXPECT_DOUBLE_EQ(two.wire_bytes, 12 * 1024 * 2 + 4 * 1024 * 2);
  EXPECT_DOUBLE_EQ(two.seconds, 12 * (1.0 + 1024 * 2 / 100.0) + 4 * (10.0 + 1024 * 2 / 10.0));
  // Alone: only the all-reduce, and nothing is gathered.
  EXPECT_DOUBLE_EQ(one.memory.gathered, 0);
  EXPECT_EQ(one.collectives, 4);
  EXPECT_DOUBLE_EQ(one.wire_bytes, 4 * 1.5 * 2048 * 2);
}

TEST(Search, OptimizersAndFrozenParameters) {
  SearchRequest request;
  request.groups = {{"layer", 2, {{"w", {64, 64}}, {"n", {64}}}}, {"head", 1, {{"h", {64, 64}}}}};
  request.gpus = 1;
  request.rows = 4;
  auto optimizer_bytes = [&](Optimizer optimizer) {
    request.optimizer = optimizer;
    return search_layouts(request).candidates[0].memory.optimizer;
  };
  const double matrix = 4096, vector = 64;
  EXPECT_DOUBLE_EQ(optimizer_bytes(Optimizer::kAdamW), 12 * (3 * matrix + 2 * vector));
  EXPECT_DOUBLE_EQ(optimizer_bytes(Optimizer::kMuon), 8 * 2 * matrix + 12 * (matrix + 2 * vector));
  SearchResult result = (request.optimizer = Optimizer::kAdam8bit, search_layouts(request));
  EXPECT_DOUBLE_EQ(result.candidates[result.plain].memory.optimizer,
                   (4 + 2 + 8.0 / 256) * 3 * matrix + 12 * 2 * vector);
  for (Group& group : request.groups) {
    for (Tensor& tensor : group.tensors) tensor.requires_grad = false;
  }
  EXPECT_DOUBLE_EQ(optimizer_bytes(Optimizer::kAdamW), 0);
  EXPECT_DOUBLE_EQ(search_layouts(request).candidates[0].memory.gradients, 0);
}

TEST(Search, MuonPaysForItsOwners) {
  SearchRequest request;
  request.groups = {{"layer", 2, {{"w", {64, 64}}}}};
  request.gpus = 8;
  SearchResult adamw = search_layouts(request);
  request.optimizer = Optimizer::kMuon;
  SearchResult muon = search_layouts(request);
  const Candidate &a = adamw.candidates[adamw.plain], &m = muon.candidates[muon.plain];
  // Seven eighths of each matrix to the owner and back, shared over eight GPUs.
  EXPECT_DOUBLE_EQ(m.wire_bytes - a.wire_bytes, 2 * 2.0 * (4096 - 512) * 2 / 8);
  EXPECT_LT(m.memory.optimizer, a.memory.optimizer);
}

TEST(Search, BadRequests) {
  SearchRequest request = request_for("llama3_1_8b", 0, 32);
  EXPECT_THROW(search_layouts(request), Error);
  request.gpus = kMaxDevices + 1;
  EXPECT_THROW(search_layouts(request), Error);
  request.gpus = 8;
  request.rows = 0;
  EXPECT_THROW(search_layouts(request), Error);
}

TEST(ExpertForms, RoundTrip) {
  Group fused{"layer",
              3,
              {{"attn", {8, 8}},
               {"mlp.experts.up", {4, 8, 16}},
               {"mlp.experts.up_bias", {4, 16}},
               {"mlp.shared_experts.up", {4, 8}},
               {"norm", {8}}}};
  ASSERT_TRUE(has_experts(fused));
  Group split = with_experts(fused, ExpertForm::kPerExpert);
  ASSERT_EQ(split.tensors.size(), 3u + 2 * 4);
  EXPECT_EQ(split.count, 3);
  EXPECT_EQ(split.tensors[1].name, "mlp.experts.up.0");
  EXPECT_EQ(split.tensors[1].shape, (Shape{8, 16}));
  EXPECT_EQ(split.tensors[2].name, "mlp.experts.up_bias.0");
  EXPECT_EQ(split.tensors[9].name, "mlp.shared_experts.up");
  EXPECT_EQ(with_experts(fused, ExpertForm::kFused).tensors.size(), fused.tensors.size());

  Group numbered{"layer", 1, {}};
  for (int e = 0; e < 12; ++e) {
    for (const char* role : {"gate", "down"}) {
      numbered.tensors.push_back(
          {"mlp.experts." + std::to_string(e) + "." + role + ".weight", {6, 4}});
    }
  }
  Group joined = with_experts(numbered, ExpertForm::kFused);
  ASSERT_EQ(joined.tensors.size(), 2u);
  EXPECT_EQ(joined.tensors[0].name, "mlp.experts.gate.weight");
  EXPECT_EQ(joined.tensors[0].shape, (Shape{12, 6, 4}));
  EXPECT_EQ(with_experts(numbered, ExpertForm::kPerExpert).tensors.size(), 24u);

  std::vector<Group> parts = part_experts(fused);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].tensors.size(), 3u);
  EXPECT_EQ(parts[1].name, "layer.experts");
  EXPECT_EQ(parts[1].count, 3);
  EXPECT_EQ(part_experts(numbered).size(), 1u);
}

}  // namespace
}  // namespace tide::ragged
