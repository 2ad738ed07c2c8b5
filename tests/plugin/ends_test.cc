// The two ends of a connection without lanes: what a peer has written or says to have written,
// between calls of NCCL's. Nothing leaves.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "plugin/net/receiver.h"
#include "plugin/net/sender.h"

namespace tide::net {
namespace {

struct OpenSender : Sender {
  using Sender::ring;
  using Sender::Sender;
};
struct OpenReceiver : Receiver {
  using Receiver::on_received;
  using Receiver::Receiver;
};

class Ends : public testing::Test {
 protected:
  Agreement agreement(uint32_t pacing = 0) {
    Agreement agreement;
    agreement.device = &device_;
    agreement.piece_bytes = 4096;
    agreement.peer.devices.resize(1);
    agreement.self.shared = {2, 0, pacing, 1024};
    return agreement;
  }
  Registration memory() {
    Registration range;
    range.begin = reinterpret_cast<uintptr_t>(memory_.data());
    range.end = range.begin + memory_.size();
    return range;
  }
  bool sends(OpenSender& sender, int tag, ncclResult_t result = ncclSuccess) {
    const Registration range = memory();
    Request* request = nullptr;
    EXPECT_EQ(sender.isend(memory_.data(), 8, tag, &range, &request), result);
    return request != nullptr;
  }
  void grant(OpenSender& sender, uint32_t sequence, std::vector<int> tags) {
    for (uint32_t i = 0; i < tags.size(); ++i) {
      encode(GrantEntry{0x1000, 8, tags[i], {}}, sequence, i, static_cast<uint32_t>(tags.size()),
             &sender.ring());
    }
  }
  Request* receive(OpenReceiver& receiver, int count) {
    const Registration range = memory();
    std::array<void*, kMaxGroup> data;
    std::array<uint64_t, kMaxGroup> sizes;
    std::array<const Registration*, kMaxGroup> registrations;
    const std::array<int, kMaxGroup> tags = {};
    data.fill(memory_.data());
    sizes.fill(memory_.size());
    registrations.fill(&range);
    Request* request = nullptr;
    EXPECT_EQ(receiver.irecv(count, data.data(), sizes.data(), tags.data(), registrations.data(),
                             /*size_optional=*/false, &request),
              ncclSuccess);
    return request;
  }
  void arrive(OpenReceiver& receiver, const Arrival& arrival, uint32_t bytes) {
    ibv_wc completion = {};
    completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    completion.wc_flags = IBV_WC_WITH_IMM;
    completion.imm_data = htonl(encode(arrival));
    completion.byte_len = bytes;
    receiver.on_received(lane_, 0, completion);
  }

  NetDevice device_{2};
  Lane lane_{0, nullptr, 0, 0, true, true, {{16, 16, 0}, 0, 1}};
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(4096);
};

TEST_F(Ends, GrantsAreUsedOnceAndInTheirOrder) {
  OpenSender sender(agreement());
  EXPECT_FALSE(sends(sender, 1));
  grant(sender, 1, {1});
  EXPECT_FALSE(sends(sender, 1)) << "an earlier grant is not here";
  grant(sender, 0, {1, 2, 1});
  EXPECT_TRUE(sends(sender, 1));
  grant(sender, 0, {1, 2, 1});  // once more, after a lane broke
  EXPECT_TRUE(sends(sender, 1));
  EXPECT_TRUE(sends(sender, 1)) << "of receive 1, past tag 2";
  EXPECT_FALSE(sends(sender, 1));
  EXPECT_TRUE(sends(sender, 2));
  EXPECT_FALSE(sends(sender, 2));
}

TEST_F(Ends, LapsOfTheRingAreKeptApart) {
  OpenSender sender(agreement());
  for (uint32_t sequence = 0; sequence < 3 * kSlots; ++sequence) {
    EXPECT_FALSE(sends(sender, 0)) << sequence;
    grant(sender, sequence, {0});
    EXPECT_TRUE(sends(sender, 0)) << sequence;
  }
  grant(sender, 2 * kSlots, {0});  // of the lap that is over
  EXPECT_FALSE(sends(sender, 0));
  grant(sender, 3 * kSlots, {0});
  EXPECT_TRUE(sends(sender, 0));
}

TEST_F(Ends, AGrantThatIsNoneEndsTheConnection) {
  OpenSender sender(agreement());
  grant(sender, 0, {0});
  sender.ring().first[0].count = kMaxGroup + 1;
  EXPECT_FALSE(sends(sender, 0)) << "not all of it is here";
  seal(&sender.ring().first[0]);
  EXPECT_FALSE(sends(sender, 0, ncclRemoteError));
}

// The peer is known only after the welcome.
TEST_F(Ends, TheGateCountsPeers) {
  auto paced = [this](uint32_t process) {
    auto sender = std::make_unique<OpenSender>(agreement(/*pacing=*/1));
    sender->agreement().peer.process = process;
    sender->start();
    grant(*sender, 0, {0});
    return sender;
  };
  const auto first = paced(1);
  auto second = paced(2);
  const auto again = paced(1);
  const auto third = paced(3);
  EXPECT_TRUE(sends(*first, 0));
  EXPECT_TRUE(sends(*second, 0));
  EXPECT_FALSE(sends(*third, 0)) << "the device is for heads of two peers";
  EXPECT_TRUE(sends(*again, 0)) << "a peer that has heads under way";
  second.reset();
  EXPECT_TRUE(sends(*third, 0));
}

TEST_F(Ends, AReceiveIsDoneWhenAllItsMessagesAre) {
  OpenReceiver receiver(agreement(/*pacing=*/1));
  Request* request = receive(receiver, 2);
  ASSERT_NE(request, nullptr);
  int done = 0;
  std::array<int, kMaxGroup> sizes = {};
  arrive(receiver, {.entry = 1, .pieces = 1, .head = false}, 100);  // its tail, overtaking
  arrive(receiver, {.entry = 0, .pieces = 1}, 0);                   // empty
  EXPECT_EQ(receiver.test(request, &done, sizes.data()), ncclSuccess);
  EXPECT_EQ(done, 0);
  arrive(receiver, {.entry = 1, .pieces = 1, .has_tail = true}, 1024);
  EXPECT_EQ(receiver.test(request, &done, sizes.data()), ncclSuccess);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(sizes[0], 0);
  EXPECT_EQ(sizes[1], 1124);
}

TEST_F(Ends, ATailOfACompleteMessageDoesNotStandForAnother) {
  OpenReceiver receiver(agreement(/*pacing=*/1));
  Request* request = receive(receiver, 2);
  ASSERT_NE(request, nullptr);
  arrive(receiver, {.entry = 0, .pieces = 1}, 8);
  arrive(receiver, {.entry = 0, .pieces = 1, .head = false}, 8);
  int done = 0;
  EXPECT_EQ(receiver.test(request, &done, nullptr), ncclRemoteError);
  EXPECT_EQ(done, 0);
}

}  // namespace
}  // namespace tide::net
