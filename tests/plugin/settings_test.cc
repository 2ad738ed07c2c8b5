// The table of settings, name lists and link speeds.
#include "plugin/net/settings.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "include/tide/error.h"
#include "plugin/net/name_list.h"
#include "plugin/verbs/device.h"

namespace tide::net {
namespace {

Lookup from(std::map<std::string, std::string> values) {
  return [values](const char* name) -> std::optional<std::string> {
    auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
}

std::string error_of(std::map<std::string, std::string> values) {
  try {
    read_settings(from(std::move(values)));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(SettingsTest, EveryRowIsWhole) {
  std::set<std::string> names;
  for (const SettingRow& row : setting_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(std::string(row.name).find("TIDE_NET_"), 0u);
    EXPECT_NE((row.number == nullptr), (row.text == nullptr)) << row.name;
    EXPECT_GT(std::string(row.meaning).size(), 10u) << row.name;
    EXPECT_GT(std::string(row.unit).size(), 0u) << row.name;
  }
}

TEST(SettingsTest, DefaultsAreInRange) { EXPECT_NO_THROW(read_settings(from({}))); }

TEST(SettingsTest, OwnVariableBeatsNcclsVariable) {
  EXPECT_EQ(read_settings(from({{"NCCL_IB_QPS_PER_CONNECTION", "4"}})).queue_pairs, 4);
  EXPECT_EQ(
      read_settings(from({{"NCCL_IB_QPS_PER_CONNECTION", "4"}, {"TIDE_NET_QUEUE_PAIRS", "3"}}))
          .queue_pairs,
      3);
}

TEST(SettingsTest, WrongValuesAreErrorsThatNameTheirSource) {
  EXPECT_EQ(error_of({{"TIDE_NET_QUEUE_PAIRS", "99"}}),
            "TIDE_NET_QUEUE_PAIRS is \"99\"; allowed: 1 to 16 (count)");
  EXPECT_EQ(error_of({{"NCCL_IB_TIMEOUT", "twenty"}}),
            "NCCL_IB_TIMEOUT is \"twenty\"; allowed: 1 to 31 (exponent)");
  EXPECT_EQ(error_of({{"TIDE_NET_PACING", "on"}}),
            "TIDE_NET_PACING is \"on\"; allowed: one of off, head");
  EXPECT_NE(error_of({{"TIDE_NET_TIMEOUT", ""}}), "");
  EXPECT_NE(error_of({{"TIDE_NET_TIMEOUT", "16 "}}), "");
}

TEST(SettingsTest, TheManualListsEveryRow) {
  std::ifstream file("doc/net_plugin.md");
  const std::string manual{std::istreambuf_iterator<char>(file), {}};
  for (const SettingRow& row : setting_table()) {
    const std::string fallback =
        row.fallback == nullptr ? "" : "`" + std::string(row.fallback) + "`";
    const std::string standard = *row.standard == 0 ? "empty" : row.standard;
    const std::string begin =
        "| `" + std::string(row.name) + "` | " + fallback + " | " + standard + " | ";
    EXPECT_NE(manual.find(begin), manual.npos) << begin;
    EXPECT_NE(manual.find(" | " + std::string(row.meaning) + " |"), manual.npos) << row.name;
  }
}

TEST(SettingsTest, UnknownNamesGetTheNearestOne) {
  const std::vector<std::string> names = {"PATH", "TIDE_NET_PACING", "TIDE_NET_QUEUEPAIRS"};
  const auto lines = unknown_settings(names);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "TIDE_NET_QUEUEPAIRS is not a setting; nearest: TIDE_NET_QUEUE_PAIRS");
}

TEST(NameListTest, PrefixesPortsAndExclusion) {
  EXPECT_TRUE(NameList("").matches("mlx5_0", 1));
  EXPECT_TRUE(NameList("mlx5").matches("mlx5_3", 1));
  EXPECT_FALSE(NameList("=mlx5").matches("mlx5_3", 1));
  EXPECT_TRUE(NameList("=mlx5_1:1,mlx5_3").matches("mlx5_3", 2));
  EXPECT_FALSE(NameList("mlx5_1:1").matches("mlx5_1", 2));
  EXPECT_FALSE(NameList("^docker,lo").matches("lo"));
  EXPECT_TRUE(NameList("^docker,lo").matches("eth0"));
  EXPECT_TRUE(NameList("^=mlx5_1").matches("mlx5_10", 1));
  EXPECT_THROW(NameList("mlx5_0:x"), Error);
}

TEST(NameListTest, IndexPerDevice) {
  EXPECT_EQ(index_for_device("", "mlx5_0"), -1);
  EXPECT_EQ(index_for_device("-1", "mlx5_0"), -1);
  EXPECT_EQ(index_for_device("3", "mlx5_0"), 3);
  EXPECT_EQ(index_for_device("mlx5_0=3,mlx5_1=5", "mlx5_1"), 5);
  EXPECT_EQ(index_for_device("mlx5_0=3,mlx5_1=5", "mlx5_2"), -1);
  EXPECT_THROW(index_for_device("mlx5_0=3,5", "mlx5_0"), Error);
  EXPECT_THROW(index_for_device("three", "mlx5_0"), Error);
}

TEST(LinkSpeed, CodesOfTheSpecification) {
  EXPECT_EQ(verbs::link_speed(32, 2), 100000);   // EDR x4
  EXPECT_EQ(verbs::link_speed(64, 2), 200000);   // HDR x4
  EXPECT_EQ(verbs::link_speed(128, 2), 400000);  // NDR x4
  EXPECT_EQ(verbs::link_speed(128, 16), 200000);
  EXPECT_EQ(verbs::link_speed(8, 1), 10000);  // software RoCE
  EXPECT_EQ(verbs::link_speed(77, 2), 0);
}

}  // namespace
}  // namespace tide::net
