// What travels: round trips, refusals, damaged bytes, and how messages are cut.
#include "plugin/net/wire.h"

#include <gtest/gtest.h>

#include <random>

#include "plugin/net/lane.h"
#include "plugin/net/repair.h"
#include "plugin/net/split.h"

namespace tide::net {
namespace {

Introduction example() {
  Introduction introduction;
  introduction.release = "0.1.0";
  introduction.host = "node7";
  introduction.process = 4711;
  introduction.nonce = 0x1122334455667788;
  introduction.epoch = 99;
  introduction.grant_ring = 0x7f0012345600;
  introduction.shared = {2, 1, 1, 65536};
  introduction.own = {106, 16, 6};
  PeerDevice device;
  device.name = "mlx5_0";
  device.port = 1;
  device.speed = 400000;
  device.address.link_layer = IBV_LINK_LAYER_ETHERNET;
  device.address.mtu = IBV_MTU_4096;
  device.address.lid = 3;
  device.address.roce_v2 = true;
  device.address.gid.raw[15] = 9;
  device.grant_key = 0xabcd;
  introduction.devices = {device, device};
  introduction.lanes.resize(6);
  introduction.lanes[5].number = 0x123456;
  introduction.lanes[5].sequence = 0x654321;
  introduction.lanes[5].ece = {1, 2, 3};
  return introduction;
}

TEST(Wire, IntroductionRoundTrip) {
  const Introduction sent = example();
  const auto got = decode_introduction(encode(sent));
  ASSERT_TRUE(got);
  EXPECT_FALSE(got->foreign);
  const Introduction& read = got->introduction;
  EXPECT_EQ(read.host, "node7");
  EXPECT_EQ(read.nonce, sent.nonce);
  EXPECT_EQ(read.epoch, 99u);
  EXPECT_EQ(read.grant_ring, sent.grant_ring);
  EXPECT_EQ(read.shared.head_bytes, 65536u);
  EXPECT_EQ(read.own.traffic_class, 106);
  ASSERT_EQ(read.devices.size(), 2u);
  EXPECT_EQ(read.devices[1].speed, 400000);
  EXPECT_EQ(read.devices[1].address.mtu, IBV_MTU_4096);
  EXPECT_EQ(read.devices[1].address.gid.raw[15], 9);
  EXPECT_EQ(read.devices[1].grant_key, 0xabcdu);
  ASSERT_EQ(read.lanes.size(), 6u);
  EXPECT_EQ(read.lanes[5].number, 0x123456u);
  EXPECT_EQ(read.lanes[5].ece.comp_mask, 3u);
  EXPECT_EQ(refusal(*got, sent), "");
  EXPECT_EQ(differences(read, sent), "");
}

TEST(Wire, UnlikePeersAreRefusedByName) {
  const Introduction self = example();
  auto why = [&](auto change) {
    Introduction peer = example();
    peer.host = "node8";
    change(peer);
    const auto decoded = decode_introduction(encode(peer));
    EXPECT_TRUE(decoded);
    return refusal(*decoded, self);
  };
  EXPECT_EQ(why([](Introduction& peer) { peer.shared.queue_pairs = 4; }),
            "TIDE_NET_QUEUE_PAIRS is 4 at node8 (pid 4711) and 2 at node7 (pid 4711)");
  EXPECT_EQ(why([](Introduction& peer) {
              peer.wire_version = 9;
              peer.release = "3.0.0";
            }),
            "the wire version is 9 at node8 (pid 4711) and 3 at node7 (pid 4711); release 3.0.0 "
            "meets 0.1.0: install the same one everywhere");
  EXPECT_NE(why([](Introduction& peer) { peer.shared.pacing = 0; }).find("TIDE_NET_PACING is"),
            std::string::npos);
  EXPECT_NE(why([](Introduction& peer) { peer.shared.head_bytes = 1; }).find("HEAD_BYTES"),
            std::string::npos);
  EXPECT_NE(why([](Introduction& peer) { peer.shared.separate_control = 0; }).find("CONTROL"),
            std::string::npos);
  EXPECT_NE(why([](Introduction& peer) {
              peer.devices[1].address.link_layer = IBV_LINK_LAYER_INFINIBAND;
            }).find("link layer"),
            std::string::npos);
  std::vector<uint8_t> foreign(64, 0x5a);
  const auto decoded = decode_introduction(foreign);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(refusal(*decoded, self), "the peer does not run the Tide net plugin");
}

TEST(Wire, DifferencesThatMayBe) {
  Introduction peer = example();
  peer.own.timeout = 20;
  peer.release = "0.2.0";
  EXPECT_EQ(differences(peer, example()),
            "timeout 20 there and 16 here, release 0.2.0 there and 0.1.0 here");
}

// Every prefix, and every byte changed: an answer or none, never more lanes or devices than fit.
TEST(Wire, DamagedIntroductions) {
  const std::vector<uint8_t> whole = encode(example());
  for (size_t length = 12; length < whole.size(); ++length) {
    EXPECT_FALSE(decode_introduction({whole.data(), length})) << length;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int value : {0, 1, 0x7f, 0xff}) {
      std::vector<uint8_t> damaged = whole;
      damaged[i] = static_cast<uint8_t>(value);
      const auto got = decode_introduction(damaged);
      if (!got) continue;
      EXPECT_LE(got->introduction.devices.size(), static_cast<size_t>(kMaxDevices));
      EXPECT_LE(got->introduction.lanes.size(), static_cast<size_t>(kMaxLanes));
      for (char c : got->introduction.host) EXPECT_TRUE(c >= ' ' && c <= '~');
    }
  }
}

TEST(Wire, RepairRoundTripAndLimits) {
  Repair repair;
  repair.step = RepairStep::kAnswer;
  repair.lane = 7;
  repair.generation = 3;
  repair.received = uint64_t{1} << 40;
  repair.pair.number = 77;
  repair.port.mtu = IBV_MTU_1024;
  std::vector<uint8_t> bytes = encode(repair);
  const auto got = decode_repair(bytes);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->step, RepairStep::kAnswer);
  EXPECT_EQ(got->received, repair.received);
  EXPECT_EQ(got->pair.number, 77u);
  bytes[0] = 0;
  EXPECT_FALSE(decode_repair(bytes));
  bytes[0] = 6;
  EXPECT_FALSE(decode_repair(bytes));
  bytes[0] = 1;
  bytes.push_back(0);
  EXPECT_FALSE(decode_repair(bytes));
}

TEST(Wire, AcknowledgementRoundTrip) {
  std::vector<uint8_t> bytes(kAcknowledgementBytes);
  encode(Acknowledgement{7, 0xfffffffe}, bytes.data());
  Acknowledgement got;
  ASSERT_TRUE(decode(bytes, &got));
  EXPECT_EQ(got.epoch, 7u);
  EXPECT_EQ(got.heads, 0xfffffffeu);
  EXPECT_FALSE(decode(std::span(bytes).first(bytes.size() - 1), &got));
  bytes.push_back(0);
  EXPECT_FALSE(decode(bytes, &got));
  bytes.pop_back();
  bytes[0] ^= 1;
  EXPECT_FALSE(decode(bytes, &got));
}

TEST(Wire, ArrivalsKeepTheirFields) {
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    const Arrival sent{static_cast<uint32_t>(random() % kSlots),
                       static_cast<uint32_t>(random() % kMaxGroup),
                       static_cast<uint32_t>(1 + random() % kMaxPieces),
                       random() % 2 == 0,
                       random() % 2 == 0,
                       static_cast<uint32_t>(random() % 256)};
    const Arrival got = decode_arrival(encode(sent));
    ASSERT_EQ(got.slot, sent.slot);
    ASSERT_EQ(got.entry, sent.entry);
    ASSERT_EQ(got.pieces, sent.pieces);
    ASSERT_EQ(got.head, sent.head);
    ASSERT_EQ(got.has_tail, sent.has_tail);
    ASSERT_EQ(got.round, sent.round);
  }
}

TEST(Split, PiecesCoverTheMessageOnLineBorders) {
  for (uint64_t lanes : {1, 2, 3, 7, 16, 128}) {
    for (uint64_t length :
         {uint64_t{0}, uint64_t{1}, uint64_t{127}, uint64_t{128}, uint64_t{129}, uint64_t{65536},
          uint64_t{1000003}, uint64_t{1} << 31, kMaxMessageBytes}) {
      const Part part = split(256, length, lanes, 1, 8192);
      ASSERT_GE(part.pieces, 1u);
      ASSERT_LE(part.pieces, kMaxPieces);
      uint64_t at = 256;
      for (uint32_t i = 0; i < part.pieces; ++i) {
        ASSERT_EQ(part.piece_offset(i), at);
        ASSERT_EQ(part.piece_offset(i) % kLine, 0u);
        ASSERT_LE(part.piece_length(i), kMaxPieceBytes);
        ASSERT_TRUE(length == 0 || part.piece_length(i) > 0);
        at += part.piece_length(i);
      }
      ASSERT_EQ(at, 256 + length) << length << " over " << lanes;
    }
  }
}

TEST(Split, SmallMessagesAreOnePiece) {
  EXPECT_EQ(split(0, 4096, 8, 1, 4096).pieces, 1u);
  EXPECT_EQ(split(0, 8192, 8, 1, 4096).pieces, 2u);
  EXPECT_EQ(split(0, 1 << 20, 8, 1, 4096).pieces, 8u);
}

TEST(Split, EveryDeviceGetsAPieceBeforeQueuePairsDo) {
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_EQ(split(0, kDeviceShare, 4, 2, kMiB).pieces, 1u);
  EXPECT_EQ(split(0, 2 * kDeviceShare, 4, 2, kMiB).pieces, 2u);
  EXPECT_EQ(split(0, kMiB, 4, 2, kMiB).pieces, 2u);
  EXPECT_EQ(split(0, kMiB, 2, 1, kMiB).pieces, 1u);
  EXPECT_EQ(split(0, 4 * kMiB, 4, 2, kMiB).pieces, 4u);
}

TEST(Split, Heads) {
  EXPECT_EQ(head_length(1000, 0), 1000u);
  EXPECT_EQ(head_length(1000, 4096), 1000u);
  EXPECT_EQ(head_length(10000, 4096), 4096u);
  EXPECT_EQ(head_length(10000, 4000), 4096u);
}

TEST(WorkIds, KeepTheirFields) {
  const WorkId id = WorkId::unpack(WorkId{135, true, 0xabcdef, 0x123456}.pack());
  EXPECT_EQ(id.lane, 135u);
  EXPECT_TRUE(id.receive);
  EXPECT_EQ(id.generation, 0xabcdefu);
  EXPECT_EQ(id.index, 0x123456u);
}

TEST(Repairs, OffersSlowDown) {
  EXPECT_EQ(offer_delay(0), std::chrono::milliseconds(10));
  EXPECT_EQ(offer_delay(6), std::chrono::milliseconds(640));
  EXPECT_EQ(offer_delay(7), std::chrono::seconds(1));
  EXPECT_EQ(offer_delay(1000), std::chrono::seconds(1));
}

}  // namespace
}  // namespace tide::net
