// The choice of a GID.
#include "plugin/verbs/gid.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <vector>

#include "include/tide/error.h"

namespace tide::verbs {
namespace {

GidEntry entry(int index, const char* address, bool roce_v2) {
  GidEntry entry{index, {}, roce_v2};
  EXPECT_EQ(inet_pton(AF_INET6, address, entry.gid.raw), 1);
  return entry;
}

// What a mlx5 port with one IPv4 and one IPv6 address shows.
const std::vector<GidEntry> kUsual = {
    entry(0, "fe80::1", false),         entry(1, "fe80::1", true),
    entry(2, "::ffff:10.0.0.1", false), entry(3, "::ffff:10.0.0.1", true),
    entry(4, "fd00::1", false),         entry(5, "fd00::1", true)};

TEST(Gid, RoutableVersion2Ipv4First) { EXPECT_EQ(choose_gid(kUsual, {}).index, 3); }

TEST(Gid, AFamilyCanBeAskedFor) {
  EXPECT_EQ(choose_gid(kUsual, {-1, GidFamily::kIpv6}).index, 5);
  EXPECT_EQ(choose_gid(kUsual, {-1, GidFamily::kIpv4}).index, 3);
}

TEST(Gid, AnIndexIsObeyed) {
  EXPECT_EQ(choose_gid(kUsual, {0}).index, 0);
  EXPECT_EQ(choose_gid(kUsual, {4, GidFamily::kIpv4}).index, 4);
}

TEST(Gid, LinkLocalIsBetterThanNothing) {
  const std::vector<GidEntry> table = {entry(0, "fe80::1", false), entry(1, "fe80::1", true)};
  EXPECT_EQ(choose_gid(table, {}).index, 1);
}

TEST(Gid, OnlyIpv6) {
  const std::vector<GidEntry> table = {entry(0, "fe80::1", true), entry(1, "2001:db8::1", true)};
  EXPECT_EQ(choose_gid(table, {}).index, 1);
}

TEST(Gid, EmptyEntriesDoNotCount) {
  const std::vector<GidEntry> table = {entry(0, "::", true), entry(7, "::ffff:10.1.1.1", true)};
  EXPECT_EQ(choose_gid(table, {}).index, 7);
  EXPECT_THROW(choose_gid(table, {0}), Error);
}

TEST(Gid, TheMessageShowsTheTable) {
  try {
    choose_gid(kUsual, {9});
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("no GID at index 9"), text.npos) << text;
    EXPECT_NE(text.find("3:::ffff:10.0.0.1(v2)"), text.npos) << text;
    EXPECT_NE(text.find("TIDE_NET_GID_INDEX"), text.npos) << text;
  }
}

}  // namespace
}  // namespace tide::verbs
