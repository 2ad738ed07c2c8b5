// What rails say to each other: there and back, cut short, and from unlike peers.
#include "plugin/rail/messages.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tide::rail {
namespace {

Hello hello() {
  Hello hello;
  hello.release = "0.1.0";
  hello.host = "host7";
  hello.process = 4711;
  hello.node = 3;
  hello.nonce = 0x123456789abcdef0;
  hello.shared = {8, 2, 1, 8 << 20, 2};
  hello.device = "mlx5_2 port 1";
  hello.port.link_layer = IBV_LINK_LAYER_ETHERNET;
  hello.port.mtu = IBV_MTU_4096;
  hello.port.gid.raw[15] = 9;
  hello.pairs.resize(3);
  for (uint32_t i = 0; i < 3; ++i) hello.pairs[i] = {100 + i, 7 * i, {}};
  return hello;
}

TEST(Messages, Address) {
  Address address;
  address.handle.family = 2;
  address.handle.port = 40123;
  address.handle.scope = 5;
  for (size_t i = 0; i < 16; ++i) address.handle.host[i] = static_cast<uint8_t>(17 * i);
  address.nonce = 0xfedcba9876543210;
  const std::string text = encode(address);
  EXPECT_EQ(text.find_first_of(" \t\n"), std::string::npos);
  const auto decoded = decode_address(text);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->handle.port, 40123);
  EXPECT_EQ(decoded->handle.scope, 5u);
  EXPECT_EQ(decoded->nonce, address.nonce);
  EXPECT_TRUE(std::equal(decoded->handle.host, decoded->handle.host + 16, address.handle.host));
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    const auto shorter = decode_address(text.substr(0, length));
    EXPECT_TRUE(!shorter || shorter->nonce != address.nonce) << length;
  }
  for (const char* wrong : {"", "tide-rail-1", "tide-rail-2:2:00:1:0:1", "tide-rail-1:zz",
                            ":::::", "tide-rail-1:2:000102030405060708090a0b0c0d0e0f:99999:0:1",
                            "tide-rail-1:2:000102030405060708090a0b0c0d0e0f:1:0:1:2",
                            "tide-rail-1:1:000102030405060708090a0b0c0d0e0f:1:0:1"}) {
    EXPECT_FALSE(decode_address(wrong)) << wrong;
  }
}

TEST(Messages, Hello) {
  const std::vector<uint8_t> bytes = encode(hello());
  const auto decoded = decode_hello(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_FALSE(decoded->foreign);
  EXPECT_EQ(decoded->hello.host, "host7");
  EXPECT_EQ(decoded->hello.node, 3);
  EXPECT_EQ(decoded->hello.shared.head_bytes, 8u << 20);
  EXPECT_EQ(decoded->hello.pairs.size(), 3u);
  EXPECT_EQ(decoded->hello.pairs[2].number, 102u);
  EXPECT_EQ(decoded->hello.port.gid.raw[15], 9);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_hello(std::span(bytes).first(length))) << length;
  }
  std::vector<uint8_t> longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(decode_hello(longer));
}

TEST(Messages, UnlikePeersAreNamed) {
  const Hello self = hello();
  auto why = [&](auto change) {
    Hello other = hello();
    other.host = "host9";
    change(other);
    const auto decoded = decode_hello(encode(other));
    return decoded ? refusal(*decoded, self) : "not decoded";
  };
  EXPECT_EQ(why([](Hello&) {}), "");
  auto says = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos && text.find("host9") != std::string::npos;
  };
  EXPECT_TRUE(says(why([](Hello& o) { o.wire_version = 99; }), "wire version of the rails is 99"));
  EXPECT_TRUE(says(why([](Hello& o) { o.shared.nodes = 7; }), "number of nodes is 7"));
  EXPECT_TRUE(says(why([](Hello& o) { o.shared.rail = 1; }), "the rail is 1"));
  EXPECT_TRUE(says(why([](Hello& o) { o.shared.pacing = 0; }), "pacing"));
  EXPECT_TRUE(says(why([](Hello& o) { o.shared.queue_pairs = 4; }), "queue pairs is 4"));
  EXPECT_TRUE(says(why([](Hello& o) { o.shared.head_bytes = 1; }), "head_bytes is 1"));
  EXPECT_TRUE(says(why([](Hello& o) { o.port.link_layer = IBV_LINK_LAYER_INFINIBAND; }),
                   "another link layer"));
  std::vector<uint8_t> foreign = encode(hello());
  foreign[0] ^= 1;
  const auto decoded = decode_hello(foreign);
  ASSERT_TRUE(decoded && decoded->foreign);
  EXPECT_NE(refusal(*decoded, self).find("does not speak"), std::string::npos);
}

TEST(Messages, Offer) {
  Offer offer;
  offer.generation = 12;
  offer.port = hello().port;
  offer.pairs = hello().pairs;
  const auto decoded = decode_offer(encode(offer));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->generation, 12u);
  EXPECT_EQ(decoded->pairs[1].sequence, 7u);
  std::vector<uint8_t> bytes = encode(offer);
  bytes[5] = 77;  // an MTU that there is not
  EXPECT_FALSE(decode_offer(bytes));
}

TEST(Messages, AbortIsFitForALog) {
  const auto decoded = decode_abort(encode(Abort{4, "bad\nline \x01\xff"}));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->culprit, 4);
  EXPECT_EQ(decoded->text, "bad?line ??");
  EXPECT_EQ(decode_abort(encode(Abort{0, std::string(9000, 'x')}))->text.size(), 2000u);
}

TEST(Messages, Control) {
  Control grant;
  grant.kind = ControlKind::kGrant;
  grant.oldest = 5;
  grant.sent = 1ull << 40;
  grant.exchange = 7;
  grant.address = 0x7f0000001000;
  grant.bytes = 12345;
  grant.key = 0xabcd;
  uint8_t bytes[kControlBytes];
  encode(grant, bytes);
  auto decoded = decode_control(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->exchange, 7u);
  EXPECT_EQ(decoded->address, grant.address);
  EXPECT_EQ(decoded->key, grant.key);
  EXPECT_EQ(decoded->sent, grant.sent);
  Control rounds;
  rounds.kind = ControlKind::kRounds;
  rounds.rounds[23] = std::byte{9};
  encode(rounds, bytes);
  decoded = decode_control(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->rounds[23], std::byte{9});
  EXPECT_FALSE(decode_control(std::span<const uint8_t>(bytes).first(kControlBytes - 1)));
  bytes[0] = 4;
  EXPECT_FALSE(decode_control(bytes));
  bytes[0] = 0;
  EXPECT_FALSE(decode_control(bytes));
}

}  // namespace
}  // namespace tide::rail
