#include "shim/collective/agreement.h"

#include <gtest/gtest.h>

#include "include/tide/error.h"

namespace tide::collective {
namespace {

std::vector<Member> members(int count) {
  std::vector<Member> all(count);
  for (int r = 0; r < count; ++r)
    all[r] = {.global_rank = 10 + r,
              .node = "a",
              .version = "1",
              .torch = "2.13.0",
              .settings = "TIDE_SHIM=on"};
  return all;
}

TEST(Agreement, OneNodeIsLayout) {
  const Decision decision = decide(members(4), 2);
  EXPECT_EQ(decision.tier, Tier::kLayout);
  EXPECT_EQ(decision.reason, "");
  EXPECT_EQ(decision.nodes, 1);
  EXPECT_EQ(decision.team, (std::vector<int>{0, 1, 2, 3}));
}

TEST(Agreement, EqualNodesInARowAreLayout) {
  auto all = members(6);
  all[2].node = all[3].node = "z";
  all[4].node = all[5].node = "b";
  const Decision decision = decide(all, 3);
  EXPECT_EQ(decision.tier, Tier::kLayout);
  EXPECT_EQ(decision.nodes, 3);
  EXPECT_EQ(decision.node, 1);
  EXPECT_EQ(decision.team, (std::vector<int>{2, 3}));
  EXPECT_EQ(decision.reason, "");
}

TEST(Agreement, OtherNodesAreCoalescedAndSayWhy) {
  auto mixed = members(4);
  mixed[1].node = mixed[3].node = "b";
  auto unequal = members(3);
  unequal[2].node = "b";
  auto apart = members(6);
  apart[1].node = apart[4].node = "b";
  apart[3].node = apart[5].node = "c";
  for (int rank = 0; rank < 3; ++rank) {
    const Decision decision = decide(mixed, rank);
    EXPECT_EQ(decision.tier, Tier::kCoalesced);
    EXPECT_EQ(decision.reason,
              "the ranks of a node do not follow each other: rank 11 is not on the node of rank "
              "10");
    EXPECT_EQ(decide(unequal, rank).tier, Tier::kCoalesced);
    EXPECT_EQ(decide(unequal, rank).reason,
              "nodes of different size: 2 ranks with rank 10, 1 with rank 12");
    EXPECT_EQ(decide(apart, rank).tier, Tier::kCoalesced);
  }
  EXPECT_EQ(decide(mixed, 3).team, (std::vector<int>{1, 3}));
}

TEST(Agreement, DifferencesAreStockAndNameTheRank) {
  for (auto field : {&Member::version, &Member::torch, &Member::settings}) {
    auto all = members(3);
    all[2].*field = "other";
    for (int rank = 0; rank < 3; ++rank) {
      const Decision decision = decide(all, rank);
      EXPECT_EQ(decision.tier, Tier::kStock);
      EXPECT_NE(decision.reason.find("rank 12 has other"), std::string::npos) << decision.reason;
    }
  }
}

TEST(Agreement, OnlySettingsThatDifferAreNamed) {
  auto all = members(3);
  for (Member& member : all) member.settings = "A=1 B=2 C=3 D=4";
  all[1].settings = "A=1 B=x C=3 D=y";
  EXPECT_EQ(decide(all, 0).reason,
            "ranks disagree on settings: rank 11 has B=x D=y, rank 10 has B=2 D=4");
}

TEST(Agreement, OneRankIsStock) { EXPECT_EQ(decide(members(1), 0).tier, Tier::kStock); }

TEST(Agreement, MembersSurviveTheWay) {
  const Member member{.global_rank = 7,
                      .node = "n/1",
                      .version = "0.1.0",
                      .torch = "2.9.1",
                      .gpu = "0000:3B:00.0",
                      .settings = "A=\"b\" C={}"};
  const Member back = parse_member(serialize(member));
  EXPECT_EQ(back.global_rank, 7);
  EXPECT_EQ(back.node, member.node);
  EXPECT_EQ(back.version, member.version);
  EXPECT_EQ(back.torch, member.torch);
  EXPECT_EQ(back.gpu, member.gpu);
  EXPECT_EQ(back.settings, member.settings);
}

// An older Tide says nothing of its GPU; that it is older is what the decision must say.
TEST(Agreement, OlderMembersAreUnderstood) {
  const Member back = parse_member(
      R"({"global_rank": 1, "node": "a", "version": "0.1.0", "torch": "2.9.1", "settings": ""})");
  EXPECT_EQ(back.version, "0.1.0");
  EXPECT_EQ(back.gpu, "");
}

TEST(Agreement, RejectsOtherTexts) {
  for (const char* text : {"", "{", "[]", "{\"node\":1}", "null"})
    EXPECT_THROW(parse_member(text), Error) << text;
}

}  // namespace
}  // namespace tide::collective
