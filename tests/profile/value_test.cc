// Texts to values and back, for every type and every row of the table.
#include "plugin/profile/value.h"

#include <gtest/gtest.h>

#include <set>

namespace tide::profile {
namespace {

const Key& key(std::string_view name) { return keys()[static_cast<size_t>(find_key(name))]; }

std::optional<int64_t> number(std::string_view name, std::string_view text) {
  const auto parsed = parse(key(name), text);
  if (!parsed) return std::nullopt;
  return parsed->number;
}

TEST(Value, Integers) {
  EXPECT_EQ(number("net.queue_pairs", "16"), 16);
  EXPECT_EQ(number("net.traffic_class", "-1"), -1);
  for (const char* wrong :
       {"", " 1", "1 ", "+1", "1.0", "0x1", "01", "17", "0", "-1", "1e1", "99999999999999999999"}) {
    EXPECT_EQ(number("net.queue_pairs", wrong), std::nullopt) << wrong;
  }
}

TEST(Value, Sizes) {
  EXPECT_EQ(number("rail.head_bytes", "8MiB"), 8 << 20);
  EXPECT_EQ(number("rail.head_bytes", "4096"), 4096);
  EXPECT_EQ(number("rail.head_bytes", "1GiB"), 1 << 30);
  for (const char* wrong : {"8MB", "8M", "8 MiB", "8mib", "MiB", "-8MiB", "8.5MiB", "4095",
                            "1025MiB", "18446744073709551616", "16777216TiB"}) {
    EXPECT_EQ(number("rail.head_bytes", wrong), std::nullopt) << wrong;
  }
}

TEST(Value, DurationsAreInNanoseconds) {
  EXPECT_EQ(number("rail.spin", "50us"), 50'000);
  EXPECT_EQ(number("rail.spin", "200ns"), 200);
  EXPECT_EQ(number("rail.spin", "0"), 0);
  EXPECT_EQ(number("rail.spin", "0ms"), 0);
  EXPECT_EQ(number("rail.timeout", "10min"), 600'000'000'000);
  for (const char* wrong : {"10", "s", "1h", "-1s", "1.5s", "1 s", "1441min", "999us"}) {
    EXPECT_EQ(number("rail.timeout", wrong), std::nullopt) << wrong;
  }
}

TEST(Value, ChoicesAreExact) {
  EXPECT_EQ(number("rail.pacing", "full"), 2);
  for (const char* wrong : {"", "Full", "full ", "2"}) {
    EXPECT_EQ(number("rail.pacing", wrong), std::nullopt) << wrong;
  }
}

TEST(Value, ThePlaceOfAWord) {
  const auto rules = rule_keys();
  const auto ctas = std::find_if(rules.begin(), rules.end(),
                                 [](const Key& key) { return key.name == "max_ctas"; });
  EXPECT_EQ(parse(*ctas, "wave")->number, ctas->word_value);
  EXPECT_EQ(format(*ctas, {.number = ctas->word_value, .text = {}}), "wave");
  EXPECT_EQ(parse(*ctas, "0"), std::nullopt);
}

TEST(Value, EveryRowIsWhole) {
  std::set<std::string_view> names, variables;
  const auto check = [](const Key& key) {
    EXPECT_GT(key.meaning.size(), 5u) << key.name;
    EXPECT_TRUE(key.standard.empty() || key.absent.empty()) << key.name;
    EXPECT_EQ(key.type == Type::kInteger, !key.unit.empty()) << key.name;
    EXPECT_TRUE(key.type != Type::kChoice || key.choices.size() > 1) << key.name;
    EXPECT_TRUE(key.standard.empty() || parse(key, key.standard)) << key.name;
    if (key.type != Type::kChoice && !key.textual()) {
      EXPECT_LT(key.minimum, key.maximum) << key.name;
      for (int64_t limit : {key.minimum, key.maximum}) {
        const std::string text = format(key, {.number = limit, .text = {}});
        ASSERT_TRUE(parse(key, text)) << key.name << " " << text;
        EXPECT_EQ(parse(key, text)->number, limit) << key.name;
      }
      for (int64_t beyond : {key.minimum - 1, key.maximum + 1}) {
        if (!key.word.empty() && beyond == key.word_value) continue;  // that is the word
        EXPECT_FALSE(parse(key, format(key, {.number = beyond, .text = {}}))) << key.name;
      }
    }
    EXPECT_NE(allowed(key), "") << key.name;
  };
  for (const Key& key : keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_TRUE(variables.insert(key.variable).second) << key.variable;
    EXPECT_TRUE(key.variable.starts_with("TIDE_")) << key.name;
    EXPECT_TRUE(key.fallback.empty() || key.fallback.starts_with("NCCL_")) << key.name;
    EXPECT_TRUE(!key.standard.empty() || !key.absent.empty() || key.textual()) << key.name;
    check(key);
  }
  for (const auto& table : {match_keys(), rule_keys(), wave_keys(), gemm_keys()}) {
    for (const Key& key : table) check(key);
  }
}

TEST(Value, FormattedAsOneWouldWriteIt) {
  EXPECT_EQ(format(key("rail.head_bytes"), {.number = 8 << 20, .text = {}}), "8MiB");
  EXPECT_EQ(format(key("rail.head_bytes"), {.number = 5000, .text = {}}), "5000");
  EXPECT_EQ(format(key("rail.spin"), {.number = 0, .text = {}}), "0");
  EXPECT_EQ(format(key("rail.spin"), {.number = 1'500, .text = {}}), "1500ns");
  EXPECT_EQ(format(key("shim.mode"), {.number = 1, .text = {}}), "observe");
  EXPECT_EQ(format(key("net.devices"), {.number = 0, .text = "a,b"}), "a,b");
}

}  // namespace
}  // namespace tide::profile
