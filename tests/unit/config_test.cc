#include "shim/torch/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace tide::shim {
namespace {

using std::chrono::milliseconds;

TEST(Config, Defaults) {
  const ConfigResult read = read_config({"PATH=/bin", "NOT_TIDE_SHIM=off"});
  EXPECT_EQ(read.error, "");
  EXPECT_TRUE(read.warnings.empty());
  EXPECT_EQ(read.config.mode, Mode::kOn);
  EXPECT_FALSE(read.config.timeout.has_value());
}

TEST(Config, EveryValue) {
  const ConfigResult read =
      read_config({"TIDE_SHIM=observe", "TIDE_LOG=debug", "TIDE_REPORT=/tmp/r-%r.json",
                   "TIDE_ALL_GATHER=coalesced", "TIDE_REDUCE_SCATTER=stock", "TIDE_TIMEOUT=200ms",
                   "TIDE_JOIN_TIMEOUT=2min", "TIDE_LOCAL_RANKS=8", "TIDE_CUDA=on"});
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(read.config.mode, Mode::kObserve);
  EXPECT_EQ(read.config.log, LogLevel::kDebug);
  EXPECT_EQ(read.config.report, "/tmp/r-%r.json");
  EXPECT_EQ(read.config.all_gather, GatherChoice::kCoalesced);
  EXPECT_EQ(read.config.reduce_scatter, ReduceChoice::kStock);
  EXPECT_EQ(read.config.timeout, milliseconds(200));
  EXPECT_EQ(read.config.join_timeout, milliseconds(120000));
  EXPECT_EQ(read.config.local_ranks, 8);
  EXPECT_TRUE(read.config.cuda);
}

TEST(Config, BadValuesSayWhatIsAllowed) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"TIDE_SHIM=maybe", "on | observe | off"},
      {"TIDE_SHIM=", "on | observe | off"},
      {"TIDE_LOG=loud", "error | warn"},
      {"TIDE_REPORT=", "path"},
      {"TIDE_REDUCE_SCATTER=fast", "layout"},
      {"TIDE_TIMEOUT=10", "30s"},
      {"TIDE_TIMEOUT=-1s", "30s"},
      {"TIDE_TIMEOUT=0s", "30s"},
      {"TIDE_TIMEOUT=99999999999999999min", "30s"},
      {"TIDE_TIMEOUT=1e3s", "30s"},
      {"TIDE_LOCAL_RANKS=0", "1024"},
      {"TIDE_LOCAL_RANKS=4x", "1024"},
      {"TIDE_ALL_GATHER=LAYOUT", "coalesced"}};
  for (const auto& [assignment, allowed] : bad) {
    const std::string error = read_config({assignment}).error;
    EXPECT_EQ(error.rfind(assignment, 0), 0u) << error;
    EXPECT_NE(error.find(allowed), std::string::npos) << error;
  }
}

TEST(Config, UnknownVariablesNameTheNearest) {
  const ConfigResult read = read_config({"TIDE_REPROT=x", "TIDE_NET_PACING=head"});
  EXPECT_EQ(read.error, "");
  ASSERT_EQ(read.warnings.size(), 1u);
  EXPECT_NE(read.warnings[0].find("TIDE_REPROT"), std::string::npos);
  EXPECT_NE(read.warnings[0].find("the nearest is TIDE_REPORT"), std::string::npos);
}

TEST(Config, RanksWithOtherSettingsDiffer) {
  EXPECT_NE(read_config({"TIDE_REDUCE_SCATTER=stock"}).config.shared_settings(),
            read_config({}).config.shared_settings());
  EXPECT_EQ(read_config({"TIDE_LOG=debug"}).config.shared_settings(),
            read_config({}).config.shared_settings());
}

// doc/configuration.md is the reference: it must name every variable with its values and default.
TEST(Config, ReferencePageIsComplete) {
  std::ifstream file("doc/configuration.md");
  ASSERT_TRUE(file) << "run from the project's root";
  std::stringstream text;
  text << file.rdbuf();
  std::string page = text.str();
  for (size_t at = page.find("\\|"); at != std::string::npos; at = page.find("\\|"))
    page.replace(at, 2, "|");  // a bar in a Markdown table
  for (const Variable& variable : variables()) {
    EXPECT_NE(page.find(std::string("`") + variable.name + "`"), std::string::npos)
        << variable.name;
    EXPECT_NE(page.find(variable.values), std::string::npos) << variable.name;
    EXPECT_NE(page.find(variable.fallback), std::string::npos) << variable.name;
    EXPECT_NE(page.find(variable.meaning), std::string::npos) << variable.name;
  }
}

}  // namespace
}  // namespace tide::shim
