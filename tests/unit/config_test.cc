#include "shim/torch/config.h"

#include <gtest/gtest.h>

#include <tuple>

namespace tide::shim {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// On a machine without GPU, which no installed profile is for.
ConfigResult read(const std::vector<std::string>& environment) {
  return read_config(environment, profile::Machine{});
}

TEST(Config, Defaults) {
  const ConfigResult result = read({"PATH=/bin", "NOT_TIDE_SHIM=off"});
  EXPECT_EQ(result.error, "");
  EXPECT_TRUE(result.warnings.empty());
  EXPECT_EQ(result.config.profile, "none");
  EXPECT_EQ(result.config.mode, Mode::kOn);
  EXPECT_EQ(result.config.log, LogLevel::kWarn);
  EXPECT_EQ(result.config.trace, "");
  EXPECT_EQ(result.config.gradients, Gradients::kInPlace);
  EXPECT_FALSE(result.config.timeout.has_value());
  EXPECT_EQ(result.config.join_timeout, milliseconds(60000));
  EXPECT_EQ(result.config.local_ranks, 0);
  EXPECT_EQ(result.config.cuda, CudaChoice::kOn);
  EXPECT_EQ(result.config.sum_blocks, 16);
  EXPECT_EQ(result.config.sum_launch.count(), 400);
  EXPECT_EQ(result.config.multicast, MulticastChoice::kOff);
  EXPECT_EQ(result.config.multicast_bytes, uint64_t{4} << 30);
  EXPECT_EQ(result.config.rail.pacing, RailPacing::kHead);
  EXPECT_EQ(result.config.rail.head_bytes, 8u << 20);
  EXPECT_EQ(result.config.rail.schedule, Schedule::kAuto);
  EXPECT_EQ(result.config.rail.queue_pairs, 2);
  EXPECT_EQ(result.config.rail.core, -1);
  EXPECT_EQ(result.config.rail.spin, nanoseconds(50'000));
  EXPECT_EQ(result.config.rail.timeout, milliseconds(30000));
}

TEST(Config, EveryValue) {
  const ConfigResult result = read(
      {"TIDE_SHIM=observe", "TIDE_LOG=debug", "TIDE_REPORT=/tmp/r-%r.json",
       "TIDE_TRACE=/tmp/t-%r.json", "TIDE_ALL_GATHER=coalesced", "TIDE_REDUCE_SCATTER=stock",
       "TIDE_REDUCE_SCATTER_GRADIENTS=slot_reuse", "TIDE_TIMEOUT=200ms", "TIDE_JOIN_TIMEOUT=2min",
       "TIDE_LOCAL_RANKS=8", "TIDE_CUDA=rails", "TIDE_REDUCE_SCATTER_BLOCKS=8",
       "TIDE_REDUCE_SCATTER_LAUNCH=1500us", "TIDE_MULTICAST=reduce", "TIDE_MULTICAST_BYTES=6GiB"});
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.config.mode, Mode::kObserve);
  EXPECT_EQ(result.config.log, LogLevel::kDebug);
  EXPECT_EQ(result.config.report, "/tmp/r-%r.json");
  EXPECT_EQ(result.config.all_gather, GatherChoice::kCoalesced);
  EXPECT_EQ(result.config.trace, "/tmp/t-%r.json");
  EXPECT_EQ(result.config.reduce_scatter, ReduceChoice::kStock);
  EXPECT_EQ(result.config.gradients, Gradients::kSlotReuse);
  EXPECT_EQ(result.config.timeout, milliseconds(200));
  EXPECT_EQ(result.config.join_timeout, milliseconds(120000));
  EXPECT_EQ(result.config.local_ranks, 8);
  EXPECT_EQ(result.config.cuda, CudaChoice::kRails);
  EXPECT_EQ(result.config.sum_blocks, 8);
  EXPECT_EQ(result.config.sum_launch.count(), 1500);
  EXPECT_EQ(result.config.multicast, MulticastChoice::kReduce);
  EXPECT_EQ(result.config.multicast_bytes, uint64_t{6} << 30);
}

TEST(Config, EveryValueOfTheRails) {
  const ConfigResult result =
      read({"TIDE_RAIL_DEVICES=mlx5_3", "TIDE_RAIL_INTERFACE=eth1", "TIDE_RAIL_PACING=full",
            "TIDE_RAIL_HEAD_BYTES=16MiB", "TIDE_RAIL_SCHEDULE=doubling_far",
            "TIDE_RAIL_QUEUE_PAIRS=4", "TIDE_RAIL_CORE=7", "TIDE_RAIL_SPIN=0",
            "TIDE_RAIL_TIMEOUT=1500us", "TIDE_RAIL_TRAFFIC_CLASS=106",
            "TIDE_RAIL_CONTROL_TRAFFIC_CLASS=192", "TIDE_RAIL_SERVICE_LEVEL=3"});
  ASSERT_EQ(result.error, "");
  const RailConfig& rail = result.config.rail;
  EXPECT_EQ(rail.devices, "mlx5_3");
  EXPECT_EQ(rail.interface, "eth1");
  EXPECT_EQ(rail.pacing, RailPacing::kFull);
  EXPECT_EQ(rail.head_bytes, 16u << 20);
  EXPECT_EQ(rail.schedule, Schedule::kDoublingFar);
  EXPECT_EQ(rail.queue_pairs, 4);
  EXPECT_EQ(rail.core, 7);
  EXPECT_EQ(rail.spin, nanoseconds(0));
  EXPECT_EQ(rail.timeout, milliseconds(2)) << "at least what was asked for";
  EXPECT_EQ(rail.traffic_class, 106);
  EXPECT_EQ(rail.control_traffic_class, 192);
  EXPECT_EQ(rail.service_level, 3);
}

TEST(Config, BadValuesSayWhatIsAllowed) {
  const std::vector<std::tuple<std::string, std::string, std::string>> bad = {
      {"TIDE_SHIM", "maybe", "on, observe, off"},
      {"TIDE_SHIM", "", "on, observe, off"},
      {"TIDE_LOG", "loud", "error, warn"},
      {"TIDE_REPORT", "", "text that is not empty"},
      {"TIDE_REDUCE_SCATTER", "fast", "layout"},
      {"TIDE_TIMEOUT", "10", "30s"},
      {"TIDE_TIMEOUT", "-1s", "30s"},
      {"TIDE_TIMEOUT", "0s", "30s"},
      {"TIDE_TIMEOUT", "99999999999999999min", "30s"},
      {"TIDE_TIMEOUT", "1e3s", "30s"},
      {"TIDE_LOCAL_RANKS", "0", "1024"},
      {"TIDE_LOCAL_RANKS", "4x", "1024"},
      {"TIDE_ALL_GATHER", "LAYOUT", "coalesced"},
      {"TIDE_PROFILE", "no-such-profile", "none"},
      {"TIDE_PROFILE", "/no/such/file.yaml", "cannot read"}};
  for (const auto& [name, value, allowed] : bad) {
    const std::string error = read({name + "=" + value}).error;
    EXPECT_EQ(error.rfind(name, 0), 0u) << error;
    EXPECT_NE(error.find(value), std::string::npos) << error;
    EXPECT_NE(error.find(allowed), std::string::npos) << error;
  }
}

TEST(Config, OneFileForAllRanksIsSaid) {
  EXPECT_TRUE(read({"WORLD_SIZE=1", "TIDE_REPORT=r.json"}).warnings.empty());
  EXPECT_TRUE(read({"WORLD_SIZE=2", "TIDE_REPORT=r-%r.json"}).warnings.empty());
  const auto warnings = read({"WORLD_SIZE=2", "TIDE_REPORT=r.json", "TIDE_TRACE=t.json"}).warnings;
  EXPECT_EQ(
      warnings,
      (std::vector<std::string>{
          "TIDE_REPORT=r.json: all ranks write this one file; put %r, the rank, into its name",
          "TIDE_TRACE=t.json: all ranks write this one file; put %r, the rank, into its name"}));
}

TEST(Config, UnknownVariablesNameTheNearest) {
  const ConfigResult result = read({"TIDE_REPROT=x", "TIDE_NET_PACING=head"});
  EXPECT_EQ(result.error, "");
  ASSERT_EQ(result.warnings.size(), 1u);
  EXPECT_EQ(result.warnings[0],
            "TIDE_REPROT is not a variable of Tide; the nearest is TIDE_REPORT");
}

TEST(Config, RanksWithOtherSettingsDiffer) {
  for (const char* other :
       {"TIDE_REDUCE_SCATTER=stock", "TIDE_REDUCE_SCATTER_GRADIENTS=slot_reuse",
        "TIDE_RAIL_PACING=off", "TIDE_RAIL_HEAD_BYTES=1MiB", "TIDE_RAIL_SCHEDULE=ring",
        "TIDE_MULTICAST=auto", "TIDE_MULTICAST=reduce", "TIDE_MULTICAST_BYTES=1GiB"}) {
    EXPECT_NE(read({other}).config.shared_settings(), read({}).config.shared_settings()) << other;
  }
  EXPECT_EQ(read({"TIDE_LOG=debug"}).config.shared_settings(), read({}).config.shared_settings());
}

}  // namespace
}  // namespace tide::shim
