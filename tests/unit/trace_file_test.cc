#include "shim/torch/trace_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "include/tide/error.h"

namespace tide::shim {
namespace {

using std::chrono::nanoseconds;

TraceFile::Clock::time_point at(int64_t nanos) {
  return TraceFile::Clock::time_point(nanoseconds(nanos));
}

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

constexpr const char* kGolden = R"golden([
{"ph":"M","name":"process_name","pid":3,"tid":0,"args":{"name":"rank 3 (pid 42)"}},
{"ph":"M","name":"thread_name","pid":3,"tid":42,"args":{"name":"python"}},
{"ph":"X","name":"copy_in layers.0 (group 1)","cat":"copy_in","pid":3,"tid":42,"ts":1000.000,"dur":2.500,"args":{"group":"layers.0 (group 1)","tier":"layout","sequence":1,"bytes":512}},
{"ph":"M","name":"thread_name","pid":3,"tid":16777216,"args":{"name":"all_gather 1"}},
{"ph":"B","name":"all_gather layers.0 (group 1)","cat":"all_gather","pid":3,"tid":16777216,"ts":1003.000,"args":{"group":"layers.0 (group 1)","tier":"layout","sequence":1,"bytes":2048}},
{"ph":"M","name":"thread_name","pid":3,"tid":16777217,"args":{"name":"all_gather 2"}},
{"ph":"B","name":"all_gather a \"quoted\\name\"","cat":"all_gather","pid":3,"tid":16777217,"ts":1004.001,"args":{"group":"a \"quoted\\name\"","tier":"coalesced","sequence":7,"bytes":0}},
{"ph":"E","name":"all_gather layers.0 (group 1)","cat":"all_gather","pid":3,"tid":16777216,"ts":1010.000},
{"ph":"B","name":"all_gather layers.0 (group 1)","cat":"all_gather","pid":3,"tid":16777216,"ts":1010.000,"args":{"group":"layers.0 (group 1)","tier":"layout","sequence":1,"bytes":2048}},
{"ph":"E","name":"all_gather a \"quoted\\name\"","cat":"all_gather","pid":3,"tid":16777217,"ts":1020.000,"args":{"error":"rank 1 (pid 7) is gone"}},
{"ph":"E","name":"all_gather layers.0 (group 1)","cat":"all_gather","pid":3,"tid":16777216,"ts":1021.000}
]
)golden";

class TraceFileTest : public testing::Test {
 protected:
  void SetUp() override {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = testing::TempDir() + "tide_trace_" + std::to_string(getpid()) + "_" + test->name();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_;
};

TEST_F(TraceFileTest, Golden) {
  const TraceFacts copy{.phase = "copy_in",
                        .group = "layers.0 (group 1)",
                        .tier = "layout",
                        .sequence = 1,
                        .bytes = 512};
  const TraceFacts first{.phase = "all_gather",
                         .group = "layers.0 (group 1)",
                         .tier = "layout",
                         .sequence = 1,
                         .bytes = 2048};
  const TraceFacts second{.phase = "all_gather",
                          .group = "a \"quoted\\name\"",
                          .tier = "coalesced",
                          .sequence = 7,
                          .bytes = 0};
  {
    TraceFile file(path_, 3, "rank 3 (pid 42)");
    file.slice(copy, 42, "python", at(1'000'000), at(1'002'500));
    const int lane = file.open(first, at(1'003'000));
    const int other = file.open(second, at(1'004'001));
    EXPECT_NE(lane, other) << "moves that overlap";
    file.shut(first, lane, at(1'010'000), "");
    // Read its clock before the lane was free.
    EXPECT_EQ(file.open(first, at(1'009'000)), lane);
    file.shut(second, other, at(1'020'000), "rank 1 (pid 7) is gone");
    file.shut(first, lane, at(1'021'000), "");
  }
  EXPECT_EQ(read(path_), kGolden);
}

// What a killed process leaves: whole events, only the end of the array is missing.
TEST_F(TraceFileTest, WhatIsWrittenEndsBehindAnEvent) {
  TraceFile file(path_, 0, "rank 0");
  const TraceFacts facts{.phase = "copy_out", .group = "g", .tier = "layout", .sequence = 1};
  for (int i = 0; i < 2000; ++i) file.slice(facts, 1, "python", at(i), at(i + 1));
  const std::string early = read(path_);
  ASSERT_FALSE(early.empty()) << "the buffer must not hold 2000 events";
  const auto events = nlohmann::json::parse(early + "]");
  EXPECT_GT(events.size(), 100u);
  file.flush();
  EXPECT_EQ(nlohmann::json::parse(read(path_) + "]").size(), 2002u);
  file.close();
  EXPECT_EQ(nlohmann::json::parse(read(path_)).size(), 2002u);
  file.slice(facts, 1, "python", at(1), at(2));
  file.flush();
  EXPECT_EQ(nlohmann::json::parse(read(path_)).size(), 2002u) << "closed";
}

TEST_F(TraceFileTest, OldEventsAreWrittenByTheNext) {
  TraceFile file(path_, 0, "rank 0");
  const TraceFacts facts{.phase = "copy_out", .group = "g", .tier = "layout", .sequence = 1};
  const auto now = TraceFile::Clock::now();
  file.slice(facts, 1, "python", now, now);
  EXPECT_EQ(read(path_), "");
  file.slice(facts, 1, "python", now, now + TraceFile::kAge + nanoseconds(1'000'000'000));
  EXPECT_EQ(nlohmann::json::parse(read(path_) + "]").size(), 3u);
}

// As when the rank hangs in what it began, and is killed.
TEST_F(TraceFileTest, TheLastEventIsWrittenToo) {
  TraceFile file(path_, 0, "rank 0");
  const TraceFacts facts{.phase = "all_gather", .group = "g", .tier = "layout", .sequence = 1};
  file.open(facts, TraceFile::Clock::now());
  for (int i = 0; i < 100 && read(path_).empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const auto events = nlohmann::json::parse(read(path_) + "]");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2]["ph"], "B");
}

TEST_F(TraceFileTest, ThreadsShareIt) {
  TraceFile file(path_, 0, "rank 0");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&file, t] {
      const TraceFacts facts{.phase = "all_gather", .group = "g", .tier = "layout", .sequence = 1};
      for (int i = 0; i < 500; ++i) {
        const int lane = file.open(facts, TraceFile::Clock::now());
        const auto begin = TraceFile::Clock::now();
        file.slice(facts, t + 1, "python", begin, TraceFile::Clock::now());
        file.shut(facts, lane, TraceFile::Clock::now(), "");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  file.close();
  const auto events = nlohmann::json::parse(read(path_));
  std::map<int, int> depth;
  std::map<int, double> last;
  int slices = 0;
  for (const auto& event : events) {
    slices += event["ph"] == "X";
    if (event["ph"] != "B" && event["ph"] != "E") continue;
    const int lane = event["tid"];
    EXPECT_LE(last[lane], event["ts"].get<double>());
    last[lane] = event["ts"];
    depth[lane] += event["ph"] == "B" ? 1 : -1;
    EXPECT_TRUE(depth[lane] == 0 || depth[lane] == 1);
  }
  EXPECT_EQ(slices, 2000);
  EXPECT_LE(depth.size(), 4u) << "as many lanes as moves that overlap";
}

TEST_F(TraceFileTest, AFolderThatIsMissingIsAnError) {
  try {
    TraceFile("/nonexistent/trace.json", 0, "rank 0");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("TIDE_TRACE=/nonexistent/trace.json"),
              std::string::npos);
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos);
  }
}

TEST_F(TraceFileTest, AFullDiskEndsTheTraceNotTheJob) {
  TraceFile file("/dev/full", 0, "rank 0");
  const TraceFacts facts{.phase = "copy_out", .group = "g", .tier = "layout", .sequence = 1};
  file.slice(facts, 1, "python", at(1), at(2));
  file.flush();
  EXPECT_NE(file.error().find("No space left"), std::string::npos) << file.error();
  file.slice(facts, 1, "python", at(3), at(4));
  file.close();
}

}  // namespace
}  // namespace tide::shim
