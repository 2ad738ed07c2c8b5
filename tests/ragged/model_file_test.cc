// Model files: the totals of the ones we have, and what is said about broken ones.
#include "shim/cli/model_file.h"

#include <gtest/gtest.h>

#include <random>

#include "tide/error.h"

namespace tide::cli {
namespace {

int64_t total_of(const Model& model) {
  int64_t total = 0;
  for (const ragged::Group& group : model.groups) {
    for (const ragged::Tensor& tensor : group.tensors) total += group.count * ragged::numel(tensor);
  }
  return total;
}

TEST(ModelFile, TotalsOfPublishedModels) {
  auto total = [](const std::string& name) {
    return total_of(read_model_file("tests/data/models/" + name + ".yaml"));
  };
  EXPECT_EQ(total("llama3_1_8b"), 8030261248);
  EXPECT_EQ(total("llama3_1_70b"), 70553706496);
  EXPECT_EQ(total("qwen3_30b_a3b"), 30532122624);
  EXPECT_EQ(total("qwen3_30b_a3b_fused"), 30532122624);
  EXPECT_EQ(total("gpt_oss_120b"), 116829156672);
  EXPECT_EQ(total("deepseek_v3_671b"), 671026419200);
  EXPECT_EQ(total("wan2_2_t2v_14b"), 14288491584);
}

TEST(ModelFile, RepeatedParametersTakeTurns) {
  Model model = read_model_file("tests/data/models/deepseek_v3_671b.yaml");
  const ragged::Group& moe = model.groups[2];
  ASSERT_EQ(moe.tensors.size(), 782u);
  EXPECT_EQ(moe.count, 58);
  EXPECT_EQ(moe.tensors[7].name, "mlp.experts.0.gate_proj.weight");
  EXPECT_EQ(moe.tensors[8].name, "mlp.experts.0.up_proj.weight");
  EXPECT_EQ(moe.tensors[9].name, "mlp.experts.0.down_proj.weight");
  EXPECT_EQ(moe.tensors[10].name, "mlp.experts.1.gate_proj.weight");
  EXPECT_EQ(moe.tensors[776].dtype, "fp32");
}

TEST(ModelFile, PlainCountRepeatsOneTensor) {
  Model model = read_model_text(
      "groups: [{name: g, params: [{name: 'w{e}', shape: [2], count: 3}, {name: v, shape: [1]}]}]",
      "m.yaml");
  ASSERT_EQ(model.groups[0].tensors.size(), 4u);
  EXPECT_EQ(model.groups[0].tensors[2].name, "w2");
  EXPECT_EQ(model.name, "m.yaml");
}

TEST(ModelFile, BlocksAndFlagsOfAParameter) {
  Model model = read_model_text(
      "dtype: fp32\n"
      "groups: [{name: g, params: [{name: w, shape: [4, 4], block: 'tiles:2x2'},\n"
      "  {name: v, shape: [4], dtype: torch.bfloat16, requires_grad: false}]}]",
      "m.yaml");
  const auto& tensors = model.groups[0].tensors;
  EXPECT_EQ(tensors[0].block, ragged::parse_policy("tiles:2x2"));
  EXPECT_EQ(tensors[0].dtype, "fp32");
  EXPECT_FALSE(tensors[1].block);
  EXPECT_EQ(tensors[1].dtype, "bf16");
  EXPECT_FALSE(tensors[1].requires_grad);
}

std::string error_of(const std::string& text) {
  try {
    read_model_text(text, "m.yaml");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string param(const std::string& rest) {
  return "groups:\n  - name: g\n    params:\n      - {name: w, " + rest + "}\n";
}

TEST(ModelFile, MessagesNamePlaceKeyAndRemedy) {
  EXPECT_EQ(error_of(param("shpae: [4]")),
            "m.yaml:4:19: unknown key 'shpae' of a parameter; the nearest valid key is 'shape'");
  EXPECT_EQ(error_of("grops: []"),
            "m.yaml:1:1: unknown key 'grops' of the model; the nearest valid key is 'groups'");
  EXPECT_EQ(error_of(param("shape: [4, x]")),
            "m.yaml:4:30: 'shape of w' must be a whole number of at least 1, not 'x'");
  EXPECT_EQ(error_of(param("shape: [0]")),
            "m.yaml:4:27: 'shape of w' must be a whole number of at least 1, not '0'");
  EXPECT_EQ(error_of(param("dtype: bf16")), "m.yaml:4:9: parameter w has no key 'shape'; add it");
  EXPECT_EQ(error_of(""), "m.yaml is empty; doc/planner.md shows what a model file holds");
  EXPECT_EQ(error_of("model: x"), "m.yaml:1:1: the model has no key 'groups'; add it");
  EXPECT_NE(error_of("groups: [}").find("m.yaml:1:10: "), std::string::npos);
}

TEST(ModelFile, EveryOtherMistakeIsAnError) {
  auto says = [](const std::string& text, const std::string& part) {
    std::string error = error_of(text);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  says("- 1", "the model must be a map");
  says("groups: []", "'groups' must be a list of at least one group");
  says("groups: [{name: g, params: []}]", "'params' of group g must be a list");
  says("groups: [{params: [{name: w, shape: [1]}]}]", "a group has no key 'name'");
  says(param("shape: 4"), "'shape' of w must be a list");
  says(param("shape: [4], dtype: fp7"), "m.yaml:4:38: unknown dtype 'fp7'; use one of");
  says(param("shape: [4], count: 0"), "'count' must be a whole number");
  says(param("shape: [4], count: 2000000"), "above a million");
  says(param("shape: [4], requires_grad: maybe"), "must be true or false");
  says(param("shape: [4], block: 'rows:0'"), "'rows:0' is no block policy; use elements:N");
  says(param("shape: [4], shape: [5]"), "key 'shape' of a parameter is there twice");
  says(param("shape: [4], count: 2"), "two tensors named 'w'; put {e} where the number goes");
  says(param("shape: [4]") + "      - {name: w, shape: [5]}\n",
       "m.yaml:5:9: group g has two tensors named 'w'; rename");
  says(param("shape: [4]") + "  - {name: g, params: [{name: w, shape: [5]}]}\n",
       "two groups named 'g'");
  says("total_numel: 5\n" + param("shape: [4]"), "'total_numel' says 5, but it adds up to 4");
  says("groups: [{name: g, numel: 3, params: [{name: w, shape: [4]}]}]", "'numel' says 3");
  says("groups: [{name: g, tensors: 3, params: [{name: w, shape: [4]}]}]", "'tensors' says 3");
  says(param("shape: [4000000000, 4000000000]"), "element count of tensor w does not fit");
  says("groups: [{name: g, count: 9000000000000000000, params: [{name: w, shape: [4]}]}]",
       "more elements than fit in 64 bits");
  says(
      "groups: [{name: g, params: [{name: 'a{e}', shape: [1], count: 2, repeat: r},"
      "{name: 'b{e}', shape: [1], count: 3, repeat: r}]}]",
      "must have the same count");
  EXPECT_THROW(read_model_file("tests/data/models/none.yaml"), Error);
  EXPECT_THROW(read_model_file("tests/data"), Error);
}

TEST(ModelFile, MutatedFilesEndInAModelOrAnError) {
  const std::string good =
      "model: m\ndtype: bf16\ngroups:\n  - name: g\n    count: 2\n"
      "    params:\n      - {name: \"w\", shape: [4, 5], block: 'rows:2'}\n"
      "      - {name: 'e{e}', shape: [1], count: 6, repeat: r, requires_grad: no}\n";
  ASSERT_EQ(total_of(read_model_text(good, "m")), 52);
  std::mt19937 random(5);
  int models = 0;
  for (int i = 0; i < 5'000; ++i) {
    std::string text = good;
    for (int n = 1 + int(random() % 3); n > 0; --n) {
      size_t at = random() % text.size();
      if (random() % 2) {
        text[at] = char(random() % 4 ? 32 + random() % 95 : random() % 256);
      } else {
        text.erase(at, 1 + random() % 6);
      }
    }
    try {
      models += !read_model_text(text, "m").groups.empty();
    } catch (const Error&) {
    } catch (const std::exception& error) {
      FAIL() << error.what() << " for\n" << text;
    }
  }
  EXPECT_GT(models, 50);
}

}  // namespace
}  // namespace tide::cli
