// The fault script and the link model.
#include <unistd.h>

#include <cstring>
#include <memory>

#include "tests/softverbs/test/harness.h"

namespace softverbs_test {
namespace {

// Short time-outs: 4 ms, so that retransmissions do not take long.
Options quick() {
  Options options;
  options.timeout = 10;
  options.retry_cnt = 4;
  return options;
}

// A receiver that only waits until the other side has finished.
void bystander(Peer& peer) {
  Endpoint endpoint(quick());
  endpoint.exchange(peer);
  peer.meet();
}

Environment faults(const std::string& text) { return {{"SOFTVERBS_FAULTS", script(text)}}; }

TEST(Faults, LostMessagesAreSentAgain) {
  run_sides(
      faults("seed 7\ndrop process=first probability=0.2\n"),
      [](Peer& peer) {
        Endpoint endpoint(quick());
        Address to = endpoint.exchange(peer);
        double begin = seconds();
        for (uint32_t i = 0; i < 50; ++i) {
          endpoint.buffer[i] = static_cast<uint8_t>(i + 1);
          ASSERT_EQ(endpoint.write_immediate(to, i, 1, i), 0);
        }
        for (uint32_t i = 0; i < 50; ++i) EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        EXPECT_GT(seconds() - begin, 0.008);  // at least two time-outs
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint(quick());
        endpoint.to_init();
        for (int i = 0; i < 50; ++i) ASSERT_EQ(endpoint.post_receive(0), 0);
        endpoint.exchange(peer);
        for (uint32_t i = 0; i < 50; ++i) {
          EXPECT_EQ(be32toh(endpoint.wait().imm_data), i);  // in order, each once
          EXPECT_EQ(endpoint.buffer[i], i + 1);
        }
        EXPECT_TRUE(endpoint.idle(20));
        peer.meet();
      });
}

TEST(Faults, TooManyLosses) {
  run_sides(
      faults("drop process=first after=2 count=5\n"),
      [](Peer& peer) {
        Endpoint endpoint(quick());
        Address to = endpoint.exchange(peer);
        for (uint64_t i = 0; i < 5; ++i)
          ASSERT_EQ(endpoint.write(to, 0, 8, IBV_SEND_SIGNALED, i), 0);
        const ibv_wc_status expected[] = {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_RETRY_EXC_ERR,
                                          IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR};
        for (uint64_t i = 0; i < 5; ++i) {
          ibv_wc done = endpoint.wait();
          EXPECT_EQ(done.status, expected[i]);
          EXPECT_EQ(done.wr_id, i);
        }
        peer.meet();
      },
      bystander);
}

// The worst case of a failover: the peer has the message, the sender sees an error.
TEST(Faults, LostAcknowledgementDeliversOnce) {
  run_sides(
      faults("drop-ack process=first after=1 count=2\ndrop-ack process=first after=2 count=9\n"),
      [](Peer& peer) {
        Endpoint endpoint(quick());
        Address to = endpoint.exchange(peer);
        for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(endpoint.write_immediate(to, 0, 8, i), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_RETRY_EXC_ERR);
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint(quick());
        endpoint.to_init();
        for (int i = 0; i < 9; ++i) ASSERT_EQ(endpoint.post_receive(0), 0);
        endpoint.exchange(peer);
        for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(be32toh(endpoint.wait().imm_data), i);
        peer.meet();
        EXPECT_TRUE(endpoint.idle(20));
      });
}

TEST(Faults, DelayAndKeepOrder) {
  run_sides(
      faults("delay process=first after=1 times=1 time=50ms\n"),
      [](Peer& peer) {
        Endpoint endpoint(quick());
        Address to = endpoint.exchange(peer);
        double begin = seconds();
        for (uint64_t i = 0; i < 3; ++i)
          ASSERT_EQ(endpoint.write(to, 0, 8, IBV_SEND_SIGNALED, i), 0);
        EXPECT_EQ(endpoint.wait().wr_id, 0u);
        EXPECT_EQ(endpoint.wait().wr_id, 1u);
        EXPECT_GT(seconds() - begin, 0.05);
        EXPECT_EQ(endpoint.wait().wr_id, 2u);
        peer.meet();
      },
      bystander);
}

// Two queue pairs into one completion queue: messages of one overtake those of the other, never
// those of its own.
TEST(Faults, ReorderAcrossQueuePairs) {
  constexpr uint32_t kMessages = 40;
  run_sides(
      faults("seed 3\nreorder process=first time=5ms\n"),
      [](Peer& peer) {
        Endpoint one(quick()), two(quick());
        Address to_one = one.exchange(peer), to_two = two.exchange(peer);
        for (uint32_t i = 0; i < kMessages; ++i) {
          ASSERT_EQ(one.write_immediate(to_one, 0, 8, i), 0);
          ASSERT_EQ(two.write_immediate(to_two, 0, 8, 1000 + i), 0);
        }
        for (uint32_t i = 0; i < kMessages; ++i) {
          EXPECT_EQ(one.wait().status, IBV_WC_SUCCESS);
          EXPECT_EQ(two.wait().status, IBV_WC_SUCCESS);
        }
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint one(quick());
        Options beside = quick();
        beside.beside = &one;
        Endpoint two(beside);
        for (Endpoint* endpoint : {&one, &two}) {
          endpoint->to_init();
          for (uint32_t i = 0; i < kMessages; ++i) ASSERT_EQ(endpoint->post_receive(0), 0);
        }
        one.exchange(peer);
        two.exchange(peer);
        uint32_t next_one = 0, next_two = 0, overtaken = 0;
        for (uint32_t i = 0; i < 2 * kMessages; ++i) {
          uint32_t immediate = be32toh(one.wait().imm_data);
          // They were posted in turn, the first queue pair's of each number before the second's.
          if (immediate < 1000) {
            EXPECT_EQ(immediate, next_one++);
            if (next_two + 1 < next_one) ++overtaken;
          } else {
            EXPECT_EQ(immediate, 1000 + next_two++);
            if (next_one < next_two) ++overtaken;
          }
        }
        EXPECT_GT(overtaken, 0u);
        peer.meet();
      });
}

TEST(Faults, ErrorCompletion) {
  run_sides(
      faults("error process=first opcode=write-imm after=1 status=rem-op\n"),
      [](Peer& peer) {
        Endpoint endpoint(quick());
        Address to = endpoint.exchange(peer);
        ASSERT_EQ(endpoint.write_immediate(to, 0, 0, 1), 0);
        ASSERT_EQ(endpoint.write(to, 0, 8), 0);
        ASSERT_EQ(endpoint.write_immediate(to, 0, 0, 2), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_REM_OP_ERR);
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint(quick());
        endpoint.to_init();
        ASSERT_EQ(endpoint.post_receive(1), 0);
        ASSERT_EQ(endpoint.post_receive(2), 0);
        endpoint.exchange(peer);
        EXPECT_EQ(be32toh(endpoint.wait().imm_data), 1u);
        EXPECT_TRUE(endpoint.idle(20));
        peer.meet();
      });
}

TEST(Faults, FatalQueuePair) {
  run_sides(
      faults("qp-fatal process=first device=sv0 qp=0 after=1\n"),
      [](Peer& peer) {
        Endpoint endpoint(quick());
        Address to = endpoint.exchange(peer);
        ASSERT_EQ(endpoint.write(to, 0, 8), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        ASSERT_EQ(endpoint.write(to, 0, 8), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_LOC_QP_OP_ERR);
        EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_QP_FATAL));
        peer.meet();
      },
      bystander);
}

TEST(Faults, PortDownInMidStream) {
  run_sides(
      faults("port-down process=first device=sv0 after=10 for=8ms\n"),
      [](Peer& peer) {
        Endpoint endpoint(quick());
        Address to = endpoint.exchange(peer);
        for (int i = 0; i < 20; ++i) ASSERT_EQ(endpoint.write(to, 0, 8), 0);
        for (int i = 0; i < 20; ++i) EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_PORT_ERR));
        EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_PORT_ACTIVE));
        peer.meet();
      },
      bystander);
}

TEST(Faults, PortDownAtATime) {
  run_alone(faults("port-down device=sv1 at=50ms for=50ms\n"), [] {
    ibv_context* context = open_device(1);
    double begin = seconds();
    EXPECT_TRUE(wait_event(context, IBV_EVENT_PORT_ERR));
    EXPECT_GT(seconds() - begin, 0.03);
    EXPECT_TRUE(wait_event(context, IBV_EVENT_PORT_ACTIVE));
    EXPECT_GT(seconds() - begin, 0.08);
    EXPECT_EQ(ibv_close_device(context), 0);
  });
}

// 1 Gb/s: 2.5 MB take 20 ms, and not less on two queue pairs of one port.
TEST(Link, Bandwidth) {
  run_sides(
      {{"SOFTVERBS_LINK", "1Gb/s,10us"}},
      [](Peer& peer) {
        Options options = quick();
        options.bytes = 2'500'000;
        Endpoint one(options), two(options);
        Address to_one = one.exchange(peer), to_two = two.exchange(peer);
        double begin = seconds();
        ASSERT_EQ(one.write(to_one, 0, 2'500'000), 0);
        EXPECT_EQ(one.wait().status, IBV_WC_SUCCESS);
        double single = seconds() - begin;
        EXPECT_GT(single, 0.0198);
        EXPECT_LT(single, 0.2);
        begin = seconds();
        ASSERT_EQ(one.write(to_one, 0, 2'500'000), 0);
        ASSERT_EQ(two.write(to_two, 0, 2'500'000), 0);
        EXPECT_EQ(one.wait().status, IBV_WC_SUCCESS);
        EXPECT_EQ(two.wait().status, IBV_WC_SUCCESS);
        EXPECT_GT(seconds() - begin, 0.0396);
        peer.meet();
      },
      [](Peer& peer) {
        Options options = quick();
        options.bytes = 2'500'000;
        Endpoint one(options), two(options);
        one.exchange(peer);
        two.exchange(peer);
        peer.meet();
      });
}

// Two hosts send to a third one: its port is the bottleneck.
TEST(Link, IncastSharesTheReceiver) {
  auto sender = [](Peer& peer, Endpoint& endpoint) {
    Address to = endpoint.exchange(peer);
    double begin = seconds();
    ASSERT_EQ(endpoint.write(to, 0, 1'000'000), 0);
    EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
    EXPECT_GT(seconds() - begin, 0.0075);
    peer.meet();
  };
  run_sides(
      {{"SOFTVERBS_LINK", "1Gb/s,10us"}},
      [&](Peer& peer) {
        // Both of this process's ports send to one port of the other's.
        Options second = quick();
        second.device = 1;
        Endpoint one(quick()), two(second);
        Address to_one = one.exchange(peer), to_two = two.exchange(peer);
        double begin = seconds();
        ASSERT_EQ(one.write(to_one, 0, 1'000'000), 0);
        ASSERT_EQ(two.write(to_two, 0, 1'000'000), 0);
        EXPECT_EQ(one.wait().status, IBV_WC_SUCCESS);
        EXPECT_EQ(two.wait().status, IBV_WC_SUCCESS);
        EXPECT_GT(seconds() - begin, 0.0158);  // 16 ms for 2 MB
        sender(peer, *std::make_unique<Endpoint>(quick()));
      },
      [](Peer& peer) {
        setenv("SOFTVERBS_HOST", "5", 1);
        Endpoint one(quick()), two(quick()), three(quick());
        one.exchange(peer);
        two.exchange(peer);
        three.exchange(peer);
        peer.meet();
      });
}

TEST(Link, LatencyAndSmallMessagesPassLargeOnes) {
  run_sides(
      {{"SOFTVERBS_LINK", "1Gb/s,5ms"}},
      [](Peer& peer) {
        Options options;
        options.timeout = 18;
        options.bytes = 12'500'000;
        Endpoint large(options), small(options);
        Address to_large = large.exchange(peer), to_small = small.exchange(peer);
        double begin = seconds();
        ASSERT_EQ(small.write(to_small, 0, 8), 0);
        EXPECT_EQ(small.wait().status, IBV_WC_SUCCESS);
        // There and back; the model may have read its clock shortly before the post.
        EXPECT_GT(seconds() - begin, 0.0099);
        ASSERT_EQ(large.write(to_large, 0, 12'500'000), 0);  // 100 ms
        begin = seconds();
        ASSERT_EQ(small.write(to_small, 0, 8), 0);
        EXPECT_EQ(small.wait().status, IBV_WC_SUCCESS);
        EXPECT_LT(seconds() - begin, 0.09);
        EXPECT_TRUE(large.idle(0));
        EXPECT_EQ(large.wait().status, IBV_WC_SUCCESS);
        peer.meet();
      },
      [](Peer& peer) {
        Options options;
        options.bytes = 12'500'000;
        Endpoint large(options), small(options);
        large.exchange(peer);
        small.exchange(peer);
        peer.meet();
      });
}

TEST(Link, CutDuringATransfer) {
  Environment environment = faults("port-down process=first device=sv0 after=1 for=10ms\n");
  environment["SOFTVERBS_LINK"] = "10Gb/s,20us";
  run_sides(
      environment,
      [](Peer& peer) {
        Endpoint endpoint(quick());
        Address to = endpoint.exchange(peer);
        for (size_t i = 0; i < endpoint.buffer.size(); ++i) {
          endpoint.buffer[i] = static_cast<uint8_t>(i * 7);
        }
        for (int i = 0; i < 8; ++i) ASSERT_EQ(endpoint.write(to, 0, 1 << 20), 0);
        for (int i = 0; i < 8; ++i) EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint(quick());
        endpoint.exchange(peer);
        peer.meet();
        for (size_t i = 0; i < endpoint.buffer.size(); ++i) {
          ASSERT_EQ(endpoint.buffer[i], static_cast<uint8_t>(i * 7));
        }
      });
}

}  // namespace
}  // namespace softverbs_test
