// The head gate and the account of acknowledgements.
#include "plugin/pacing/gate.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

namespace tide::pacing {
namespace {

using Verdict = HeadAccount::Verdict;

TEST(HeadGateTest, OnlySoManyPeers) {
  HeadGate gate(2);
  EXPECT_TRUE(gate.try_enter(10));
  EXPECT_TRUE(gate.try_enter(11));
  EXPECT_FALSE(gate.try_enter(12));
  gate.leave(10, 1);
  EXPECT_TRUE(gate.try_enter(12));
  EXPECT_EQ(gate.active(), 2u);
}

TEST(HeadGateTest, TheSamePeerIsNeverRefused) {
  HeadGate gate(1);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(gate.try_enter(3));
  EXPECT_FALSE(gate.try_enter(4));
  gate.leave(3, 99);
  EXPECT_FALSE(gate.try_enter(4));
  gate.leave(3, 1);
  EXPECT_TRUE(gate.try_enter(4));
}

TEST(HeadGateTest, LeavingWithNothingIsNothing) {
  HeadGate gate(1);
  EXPECT_TRUE(gate.try_enter(3));
  gate.leave(3, 0);
  EXPECT_EQ(gate.active(), 1u);
}

TEST(HeadGateTest, ThreadsNeverExceedTheLimit) {
  constexpr uint32_t kLimit = 3;
  HeadGate gate(kLimit);
  std::atomic<int> inside[16] = {};
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      for (int i = 0; i < 20000; ++i) {
        const uint32_t peer = static_cast<uint32_t>(random()) % 16;
        if (!gate.try_enter(peer)) continue;
        ++inside[peer];
        uint32_t peers = 0;
        for (auto& count : inside) peers += count > 0 ? 1 : 0;
        if (peers > kLimit) exceeded = true;
        --inside[peer];
        gate.leave(peer, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(gate.active(), 0u);
}

TEST(HeadAccountTest, CumulativeCounts) {
  HeadAccount account(7);
  for (int i = 0; i < 5; ++i) account.sent();
  EXPECT_EQ(account.acknowledge(7, 2).heads, 2u);
  EXPECT_EQ(account.outstanding(), 3u);
  EXPECT_EQ(account.acknowledge(7, 5).heads, 3u);
  EXPECT_EQ(account.outstanding(), 0u);
}

TEST(HeadAccountTest, DuplicatesAndStragglersMintNothing) {
  HeadAccount account(7);
  for (int i = 0; i < 5; ++i) account.sent();
  EXPECT_EQ(account.acknowledge(7, 4).heads, 4u);
  EXPECT_EQ(account.acknowledge(7, 4).verdict, Verdict::kOld);
  EXPECT_EQ(account.acknowledge(7, 1).verdict, Verdict::kOld);
  EXPECT_EQ(account.acknowledge(7, 0).verdict, Verdict::kOld);
  EXPECT_EQ(account.outstanding(), 1u);
}

TEST(HeadAccountTest, OtherEpochsAreNothing) {
  HeadAccount account(7);
  account.sent();
  EXPECT_EQ(account.acknowledge(6, 1).verdict, Verdict::kOld);
  EXPECT_EQ(account.outstanding(), 1u);
}

TEST(HeadAccountTest, MoreThanWasSentIsForged) {
  HeadAccount account(7);
  account.sent();
  EXPECT_EQ(account.acknowledge(7, 2).verdict, Verdict::kForged);
  EXPECT_EQ(account.outstanding(), 1u);
}

// Acknowledgements of a long connection, some lost, some doubled, some late: what is credited is
// exactly what was sent, also across the wrap of the 32-bit count.
TEST(HeadAccountTest, AnyOrderCreditsExactly) {
  std::mt19937 random(5);
  HeadAccount account(1);
  uint32_t received = 0;
  uint64_t sent = 0, credited = 0;
  std::vector<uint32_t> flying;
  auto deliver = [&](uint32_t count) {
    const auto credit = account.acknowledge(1, count);
    ASSERT_NE(credit.verdict, Verdict::kForged);
    credited += credit.heads;
  };
  for (int step = 0; step < 100000; ++step) {
    const uint32_t burst = 1 + random() % 8;
    for (uint32_t i = 0; i < burst; ++i) account.sent();
    sent += burst;
    received += burst;
    if (random() % 4 != 0) flying.push_back(received);
    if (random() % 4 == 0) flying.push_back(received);
    while (flying.size() > 5) {
      const size_t pick = random() % flying.size();
      deliver(flying[pick]);
      flying.erase(flying.begin() + static_cast<ptrdiff_t>(pick));
    }
  }
  deliver(received);
  EXPECT_EQ(credited, sent);
  EXPECT_EQ(account.outstanding(), 0u);
}

}  // namespace
}  // namespace tide::pacing
