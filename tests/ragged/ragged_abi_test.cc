// The C ABI with requests that are broken in every way: always JSON back, never a crash.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "tide/ragged_c.h"

namespace {

using nlohmann::json;

json ask(const char* request) {
  char* answer = tide_plan(request);
  json result = json::parse(answer);
  tide_plan_free(answer);
  return result;
}

const char kGood[] =
    R"({"devices": 4, "unit": 1, "name": "layer", "order": "best", "sub_buffers": "auto",
        "tensors": [{"name": "a", "shape": [6, 5], "block": "rows:2"},
                    {"name": "b", "shape": [7], "dtype": "fp32", "requires_grad": false}]})";

TEST(Abi, AnswersAPlan) {
  json answer = ask(kGood);
  ASSERT_EQ(answer["buffers"].size(), 2u);
  EXPECT_EQ(answer["buffers"][0]["shard"], 10);
  EXPECT_EQ(answer["buffers"][1]["name"], "layer/fp32/frozen");
}

TEST(Abi, SaysWhatIsWrong) {
  EXPECT_TRUE(ask(nullptr).contains("error"));
  EXPECT_TRUE(ask("").contains("error"));
  EXPECT_TRUE(ask("[1, 2").contains("error"));
  EXPECT_EQ(ask("[]")["error"], "the request must be a JSON object");
  EXPECT_TRUE(ask("{\"devices\": 18446744073709551615, \"tensors\": []}").contains("error"));
  EXPECT_TRUE(ask("{\"\xff\": 1}").contains("error"));
}

TEST(Abi, SurvivesMutatedRequests) {
  std::mt19937 random(3);
  const std::string good = kGood;
  int plans = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string request = good;
    for (int n = 1 + int(random() % 3); n > 0; --n) {
      size_t at = random() % request.size();
      switch (random() % 3) {
        case 0:
          request[at] = char(32 + random() % 95);
          break;
        case 1:
          request.erase(at, 1 + random() % 4);
          break;
        default:
          request.insert(at, 1, "0123456789-.{}[],:\""[random() % 19]);
      }
    }
    json answer = ask(request.c_str());
    ASSERT_EQ(answer.size(), 1u) << request;
    ASSERT_TRUE(answer.contains("error") || answer.contains("buffers")) << request;
    plans += answer.contains("buffers");
  }
  EXPECT_GT(plans, 100);
}

}  // namespace
