// The plugin's settings, name lists and link speeds.
#include "plugin/net/settings.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "include/tide/error.h"
#include "plugin/net/name_list.h"
#include "plugin/verbs/device.h"

namespace tide::net {
namespace {

using Values = std::map<std::string, std::string>;

// What the plugin makes of these variables on a machine without GPU.
Settings read(const Values& values) {
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
  return settings_of(load_profile(lookup, {}));
}

std::string error_of(const Values& values) {
  try {
    read(values);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Another value of a setting than its default, as a variable says it.
std::string other_value(const profile::Key& key) {
  if (key.textual()) return "mlx5_7";
  if (key.type == profile::Type::kChoice) {
    return std::string(key.choices.front() == key.standard ? key.choices.back()
                                                           : key.choices.front());
  }
  const std::string least = profile::format(key, {.number = key.minimum, .text = {}});
  return least == key.standard ? profile::format(key, {.number = key.maximum, .text = {}}) : least;
}

bool operator==(const Settings& a, const Settings& b) {
  const auto tied = [](const Settings& s) {
    return std::tie(s.devices, s.interface, s.gid_index, s.gid_family, s.queue_pairs, s.piece_bytes,
                    s.inline_bytes, s.traffic_class, s.control_traffic_class, s.service_level,
                    s.timeout, s.retry_count, s.relaxed_ordering, s.ece, s.gpu_direct, s.flush,
                    s.connect_seconds, s.recovery_seconds, s.pacing, s.pacing_peers,
                    s.pacing_head_bytes);
  };
  return tied(a) == tied(b);
}

TEST(SettingsTest, EveryVariableReachesAFieldOfItsOwn) {
  std::vector<Settings> seen = {read({})};
  for (const profile::Key& key : profile::keys()) {
    if (profile::section_of(key.name) != "net") continue;
    const Settings changed = read({{std::string(key.variable), other_value(key)}});
    for (const Settings& other : seen) EXPECT_FALSE(changed == other) << key.variable;
    seen.push_back(changed);
  }
}

TEST(SettingsTest, Defaults) {
  const Settings settings = read({});
  EXPECT_EQ(settings.devices, "");
  EXPECT_EQ(settings.gid_index, "-1");
  EXPECT_EQ(settings.queue_pairs, 2);
  EXPECT_EQ(settings.piece_bytes, 1048576);
  EXPECT_EQ(settings.pacing, 0);
  EXPECT_EQ(settings.pacing_head_bytes, 262144);
  EXPECT_EQ(settings.recovery_seconds, 60);
}

TEST(SettingsTest, OwnVariableBeatsNcclsVariable) {
  EXPECT_EQ(read({{"NCCL_IB_QPS_PER_CONNECTION", "4"}}).queue_pairs, 4);
  EXPECT_EQ(read({{"NCCL_IB_QPS_PER_CONNECTION", "4"}, {"TIDE_NET_QUEUE_PAIRS", "3"}}).queue_pairs,
            3);
}

TEST(SettingsTest, ValuesThatWereWrittenBeforeProfilesMeanTheSame) {
  EXPECT_EQ(read({{"TIDE_NET_PIECE_BYTES", "4096"}}).piece_bytes, 4096);
  EXPECT_EQ(read({{"TIDE_NET_CONNECT_SECONDS", "7"}}).connect_seconds, 7);
  EXPECT_EQ(read({{"TIDE_NET_GID_INDEX", "mlx5_0=3,mlx5_1=5"}}).gid_index, "mlx5_0=3,mlx5_1=5");
  EXPECT_EQ(read({{"TIDE_NET_FLUSH", "never"}}).flush, static_cast<int64_t>(Flush::kNever));
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

TEST(SettingsTest, SeveralWrongValuesAreOneLine) {
  EXPECT_EQ(error_of({{"TIDE_NET_QUEUE_PAIRS", "99"}, {"TIDE_NET_ECE", "yes"}}),
            "TIDE_NET_QUEUE_PAIRS is \"99\"; allowed: 1 to 16 (count) (and 1 more: `tide profile "
            "check` and `tide profile show` list them)");
}

TEST(SettingsTest, VariablesOfTheShimAreTheShims) {
  EXPECT_EQ(error_of({{"TIDE_SHIM", "perhaps"}, {"TIDE_RAIL_PACING", "perhaps"}}), "");
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
  EXPECT_THROW(index_for_device("256", "mlx5_0"), Error);
  EXPECT_THROW(index_for_device("mlx5_0=-2", "mlx5_0"), Error);
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
