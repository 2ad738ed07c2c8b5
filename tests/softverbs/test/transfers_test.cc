// What moves between two processes on softverbs, and the errors of moving it.
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>

#include "tests/softverbs/test/harness.h"

namespace softverbs_test {
namespace {

class Copying : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Modes, Copying, testing::Values("direct", "bounce"));

// Data is there when the completion is, for sizes around every border.
TEST_P(Copying, WriteWithImmediate) {
  static const std::vector<size_t> sizes = {0, 1, 7, 8, 9, 4095, 16384, 16385, 300000, 5000000};
  Options options;
  options.bytes = 5000000;
  run_sides(
      {{"SOFTVERBS_COPY", GetParam()}},
      [&](Peer& peer) {
        Endpoint endpoint(options);
        Address to = endpoint.exchange(peer);
        for (uint32_t i = 0; i < sizes.size(); ++i) {
          std::fill_n(endpoint.buffer.begin(), sizes[i], static_cast<uint8_t>(i + 1));
          ASSERT_EQ(endpoint.write_immediate(to, 0, sizes[i], i + 100), 0);
          ibv_wc done = endpoint.wait();
          EXPECT_EQ(done.status, IBV_WC_SUCCESS);
          EXPECT_EQ(done.opcode, IBV_WC_RDMA_WRITE);
          peer.meet();
        }
      },
      [&](Peer& peer) {
        Endpoint endpoint(options);
        endpoint.to_init();
        for (uint32_t i = 0; i < sizes.size(); ++i) {
          EXPECT_EQ(endpoint.post_receive(i), 0);
        }
        endpoint.exchange(peer);
        for (uint32_t i = 0; i < sizes.size(); ++i) {
          ibv_wc done = endpoint.wait();
          EXPECT_EQ(done.status, IBV_WC_SUCCESS);
          EXPECT_EQ(done.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
          EXPECT_EQ(done.wc_flags, IBV_WC_WITH_IMM);
          EXPECT_EQ(be32toh(done.imm_data), i + 100);
          EXPECT_EQ(done.byte_len, sizes[i]);
          EXPECT_EQ(done.wr_id, i);
          EXPECT_EQ(done.qp_num, endpoint.qp->qp_num);
          for (size_t k = 0; k < sizes[i]; ++k) ASSERT_EQ(endpoint.buffer[k], i + 1) << k;
          peer.meet();
        }
      });
}

TEST_P(Copying, ReadAndScatter) {
  run_sides(
      {{"SOFTVERBS_COPY", GetParam()}},
      [](Peer& peer) {
        Endpoint endpoint;
        Address to = endpoint.exchange(peer);
        ibv_sge parts[3] = {endpoint.element(500000, 300), endpoint.element(0, 1),
                            endpoint.element(1000, 400000)};
        ibv_send_wr wr{};
        wr.sg_list = parts;
        wr.num_sge = 3;
        wr.opcode = IBV_WR_RDMA_READ;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.rdma.remote_addr = to.memory + 5;
        wr.wr.rdma.rkey = to.rkey;
        ASSERT_EQ(endpoint.post(wr), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        auto expected = [](size_t i) { return static_cast<uint8_t>((i + 5) * 31); };
        for (size_t i = 0; i < 300; ++i) ASSERT_EQ(endpoint.buffer[500000 + i], expected(i));
        EXPECT_EQ(endpoint.buffer[0], expected(300));
        for (size_t i = 0; i < 400000; ++i) ASSERT_EQ(endpoint.buffer[1000 + i], expected(301 + i));
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint;
        for (size_t i = 0; i < endpoint.buffer.size(); ++i) {
          endpoint.buffer[i] = static_cast<uint8_t>(i * 31);
        }
        endpoint.exchange(peer);
        peer.meet();
      });
}

// The other side is stopped by a signal and so runs nothing at all: the write still completes, and
// is there afterwards.
TEST(Writes, AreOneSided) {
  run_sides(
      {},
      [](Peer& peer) {
        Endpoint endpoint;
        Address to = endpoint.exchange(peer);
        ASSERT_EQ(kill(peer.pid(), SIGSTOP), 0);
        std::iota(endpoint.buffer.begin(), endpoint.buffer.end(), 0);
        ASSERT_EQ(endpoint.write(to, 0, 1000000), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        ASSERT_EQ(endpoint.write_immediate(to, 0, 8, 5), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        ASSERT_EQ(kill(peer.pid(), SIGCONT), 0);
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint;
        endpoint.to_init();
        ASSERT_EQ(endpoint.post_receive(9), 0);
        endpoint.exchange(peer);
        peer.meet();
        for (size_t i = 0; i < 1000000; ++i) ASSERT_EQ(endpoint.buffer[i], i % 256);
        EXPECT_EQ(endpoint.wait().wr_id, 9u);
      });
}

TEST(Writes, InlineDataIsTakenWhenPosted) {
  run_sides(
      {},
      [](Peer& peer) {
        Endpoint endpoint;
        Address to = endpoint.exchange(peer);
        for (uint8_t i = 0; i < 8; ++i) {
          endpoint.buffer[0] = i;
          ibv_sge sge = {reinterpret_cast<uint64_t>(endpoint.buffer.data()), 1, 0};  // no key
          ibv_send_wr wr{};
          wr.sg_list = &sge;
          wr.num_sge = 1;
          wr.opcode = IBV_WR_RDMA_WRITE;
          wr.send_flags = i == 7 ? IBV_SEND_INLINE | IBV_SEND_SIGNALED : IBV_SEND_INLINE;
          wr.wr.rdma = {to.memory + i, to.rkey};
          ASSERT_EQ(endpoint.post(wr), 0);
          endpoint.buffer[0] = 0xff;
        }
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        EXPECT_EQ(endpoint.write(to, 0, 65, IBV_SEND_INLINE), EINVAL);  // max_inline_data is 64
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint;
        endpoint.exchange(peer);
        peer.meet();
        for (uint8_t i = 0; i < 8; ++i) EXPECT_EQ(endpoint.buffer[i], i);
      });
}

// As with hardware, only polling a completion frees the entries of the requests up to it.
TEST(Writes, SendQueueFillsWithoutCompletions) {
  Options options;
  options.depth = 4;
  run_sides(
      {},
      [&](Peer& peer) {
        Endpoint endpoint(options);
        Address to = endpoint.exchange(peer);
        for (int i = 0; i < 3; ++i) EXPECT_EQ(endpoint.write(to, 0, 8, 0), 0);
        EXPECT_EQ(endpoint.write(to, 0, 8, IBV_SEND_SIGNALED, 3), 0);
        EXPECT_EQ(endpoint.write(to, 0, 8), ENOMEM);
        EXPECT_EQ(endpoint.wait().wr_id, 3u);
        EXPECT_EQ(endpoint.write(to, 0, 8), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        EXPECT_TRUE(endpoint.idle(5));
        peer.meet();
      },
      [&](Peer& peer) {
        Endpoint endpoint(options);
        endpoint.exchange(peer);
        peer.meet();
      });
}

TEST(Sends, GatherAndScatterWithSrqAndLimit) {
  Options receiver;
  receiver.with_srq = true;
  run_sides(
      {},
      [](Peer& peer) {
        Endpoint endpoint;
        endpoint.exchange(peer);
        std::iota(endpoint.buffer.begin(), endpoint.buffer.end(), 0);
        for (size_t length : {20, 400000}) {
          ibv_sge parts[2] = {endpoint.element(3, 7), endpoint.element(256, length - 7)};
          ibv_send_wr wr{};
          wr.sg_list = parts;
          wr.num_sge = 2;
          wr.opcode = IBV_WR_SEND_WITH_IMM;
          wr.imm_data = htobe32(77);
          wr.send_flags = IBV_SEND_SIGNALED;
          ASSERT_EQ(endpoint.post(wr), 0);
          EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        }
        peer.meet();
      },
      [&](Peer& peer) {
        Endpoint endpoint(receiver);
        ibv_srq_attr limit{0, 0, 2};
        ASSERT_EQ(endpoint.post_receive(1, {endpoint.element(100, 10), endpoint.element(0, 50)}),
                  0);
        ASSERT_EQ(
            endpoint.post_receive(2, {endpoint.element(1000, 4), endpoint.element(2000, 400000)}),
            0);
        ASSERT_EQ(ibv_modify_srq(endpoint.srq, &limit, IBV_SRQ_LIMIT), 0);
        endpoint.exchange(peer);
        ibv_wc done = endpoint.wait();
        EXPECT_EQ(done.opcode, IBV_WC_RECV);
        EXPECT_EQ(done.byte_len, 20u);
        EXPECT_EQ(be32toh(done.imm_data), 77u);
        EXPECT_EQ(endpoint.buffer[100], 3);  // first seven from offset 3, then from 256
        EXPECT_EQ(endpoint.buffer[106], 9);
        EXPECT_EQ(endpoint.buffer[107], 0);
        EXPECT_EQ(endpoint.buffer[0], 3);
        done = endpoint.wait();
        EXPECT_EQ(done.byte_len, 400000u);
        EXPECT_EQ(endpoint.buffer[1003], 6);
        EXPECT_EQ(endpoint.buffer[2000], 7);
        for (size_t i = 3; i < 399996; ++i) ASSERT_EQ(endpoint.buffer[2000 + i], (i - 3) % 256);
        EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_SRQ_LIMIT_REACHED));
        peer.meet();
      });
}

TEST(Sends, LongerThanTheReceive) {
  run_sides(
      {},
      [](Peer& peer) {
        Endpoint endpoint;
        endpoint.exchange(peer);
        ibv_sge part = endpoint.element(0, 100);
        ibv_send_wr wr{};
        wr.sg_list = &part;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        ASSERT_EQ(endpoint.post(wr), 0);  // unsignalled: an error completes all the same
        EXPECT_EQ(endpoint.wait().status, IBV_WC_REM_INV_REQ_ERR);
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint;
        endpoint.to_init();
        ASSERT_EQ(endpoint.post_receive(1, {endpoint.element(0, 99)}), 0);
        ASSERT_EQ(endpoint.post_receive(2, {endpoint.element(0, 99)}), 0);
        endpoint.exchange(peer);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_LOC_LEN_ERR);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_WR_FLUSH_ERR);
        peer.meet();
      });
}

// The owner adds to its counter over a queue pair to itself, the other one over the wire.
TEST(Atomics, FromTwoProcessesAddUp) {
  constexpr int kRounds = 500;
  auto add = [](Endpoint& endpoint, uint64_t counter, uint32_t rkey) {
    std::set<uint64_t> seen;
    for (int i = 0; i < kRounds; ++i) {
      ibv_sge part = endpoint.element(64, 8);
      ibv_send_wr wr{};
      wr.sg_list = &part;
      wr.num_sge = 1;
      wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.wr.atomic = {counter, 3, 0, rkey};
      ASSERT_EQ(endpoint.post(wr), 0);
      ASSERT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
      uint64_t before;
      std::memcpy(&before, &endpoint.buffer[64], 8);
      EXPECT_TRUE(seen.insert(before).second);
    }
  };
  run_sides(
      {},
      [&](Peer& peer) {
        Endpoint endpoint;
        Address to = endpoint.exchange(peer);
        add(endpoint, to.memory, to.rkey);
        peer.meet();
      },
      [&](Peer& peer) {
        Endpoint endpoint, loop;
        loop.connect(loop.address());
        endpoint.exchange(peer);
        // A key holds within its protection domain only.
        ibv_mr* region = ibv_reg_mr(loop.pd, endpoint.buffer.data(), 8,
                                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
        add(loop, endpoint.address().memory, region->rkey);
        peer.meet();
        EXPECT_EQ(ibv_dereg_mr(region), 0);
        uint64_t total;
        std::memcpy(&total, endpoint.buffer.data(), 8);
        EXPECT_EQ(total, 2u * 3 * kRounds);
      });
}

TEST(Errors, RemoteAccess) {
  enum Kind { kBadKey, kOutOfRange, kReadOnly, kDeregistered, kKinds };
  for (int kind = 0; kind < kKinds; ++kind) {
    run_sides(
        {},
        [&](Peer& peer) {
          Endpoint endpoint;
          Address to = endpoint.exchange(peer);
          size_t offset = 0;
          if (kind == kBadKey) to.rkey ^= 1;
          if (kind == kOutOfRange) to.memory += endpoint.buffer.size() - 7;
          if (kind == kReadOnly) to.rkey = peer.receive<uint32_t>();
          peer.meet();
          ASSERT_EQ(endpoint.write(to, offset, 8, 0, 1), 0);
          ASSERT_EQ(endpoint.write(to, offset, 8, 0, 2), 0);
          ibv_wc done = endpoint.wait();
          EXPECT_EQ(done.status, IBV_WC_REM_ACCESS_ERR) << kind;
          EXPECT_EQ(done.wr_id, 1u);
          EXPECT_EQ(endpoint.wait().status, IBV_WC_WR_FLUSH_ERR);
          ibv_qp_attr attributes{};
          ibv_qp_init_attr init{};
          ASSERT_EQ(ibv_query_qp(endpoint.qp, &attributes, IBV_QP_STATE, &init), 0);
          EXPECT_EQ(attributes.qp_state, IBV_QPS_ERR);
          peer.meet();
        },
        [&](Peer& peer) {
          Endpoint endpoint;
          endpoint.to_init();
          ASSERT_EQ(endpoint.post_receive(4), 0);
          Address to = endpoint.exchange(peer);
          ibv_mr* extra = ibv_reg_mr(endpoint.pd, endpoint.buffer.data(), 64,
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
          if (kind == kReadOnly) peer.send(extra->rkey);
          if (kind == kDeregistered) {
            EXPECT_EQ(ibv_dereg_mr(endpoint.region), 0);
            endpoint.region = nullptr;
          }
          peer.meet();
          peer.meet();
          EXPECT_EQ(endpoint.wait().status, IBV_WC_WR_FLUSH_ERR);
          EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_QP_ACCESS_ERR));
          // The send queue is in the error state too.
          EXPECT_EQ(endpoint.write_immediate(to, 0, 0, 1, 0, 6), 0);
          ibv_wc done = endpoint.wait();
          EXPECT_EQ(done.status, IBV_WC_WR_FLUSH_ERR);
          EXPECT_EQ(done.wr_id, 6u);
          EXPECT_EQ(ibv_dereg_mr(extra), 0);
        });
  }
}

TEST(Errors, LocalProtection) {
  run_sides(
      {},
      [](Peer& peer) {
        Endpoint endpoint;
        Address to = endpoint.exchange(peer);
        ibv_sge part = endpoint.element(endpoint.buffer.size() - 4, 8);
        ibv_send_wr wr{};
        wr.sg_list = &part;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.wr.rdma = {to.memory, to.rkey};
        ASSERT_EQ(endpoint.post(wr), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_LOC_PROT_ERR);
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint;
        endpoint.exchange(peer);
        peer.meet();
      });
}

TEST(Errors, ReceiverNotReady) {
  Options impatient;
  impatient.rnr_retry = 2;
  run_sides(
      {},
      [&](Peer& peer) {
        Endpoint patient;
        Address to = patient.exchange(peer);
        ASSERT_EQ(patient.write_immediate(to, 0, 8, 1), 0);
        EXPECT_TRUE(patient.idle(50));
        peer.meet();  // now a receive is posted
        EXPECT_EQ(patient.wait().status, IBV_WC_SUCCESS);
        Endpoint endpoint(impatient);
        to = endpoint.exchange(peer);
        ASSERT_EQ(endpoint.write_immediate(to, 0, 8, 1), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_RNR_RETRY_EXC_ERR);
        peer.meet();
      },
      [&](Peer& peer) {
        Endpoint first;
        first.exchange(peer);
        peer.meet();
        ASSERT_EQ(first.post_receive(1), 0);
        EXPECT_EQ(first.wait().status, IBV_WC_SUCCESS);
        Endpoint second;
        second.exchange(peer);
        peer.meet();
      });
}

TEST(Errors, KilledPeer) {
  std::set<std::string> before, after;
  auto shared_memory = [] {
    std::set<std::string> names;
    for (auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().filename().string().find("softverbs") != std::string::npos) {
        names.insert(entry.path());
      }
    }
    return names;
  };
  Options options;
  options.timeout = 12;  // 17 ms, four times
  run_sides(
      {},
      [&](Peer& peer) {
        Endpoint endpoint(options);
        Address to = endpoint.exchange(peer);
        ASSERT_EQ(endpoint.write(to, 0, 8), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        ASSERT_EQ(kill(peer.pid(), SIGKILL), 0);
        usleep(100000);
        double begin = seconds();
        ASSERT_EQ(endpoint.write(to, 0, 8, 0, 1), 0);
        ASSERT_EQ(endpoint.write_immediate(to, 0, 0, 3, 0, 2), 0);
        ibv_wc done = endpoint.wait();
        EXPECT_EQ(done.status, IBV_WC_RETRY_EXC_ERR);
        EXPECT_EQ(done.wr_id, 1u);
        EXPECT_GT(seconds() - begin, 0.05);
        EXPECT_LT(seconds() - begin, 3);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_WR_FLUSH_ERR);
        EXPECT_TRUE(shared_memory().empty());
      },
      [&](Peer& peer) {
        Endpoint endpoint(options);
        endpoint.exchange(peer);
        for (;;) pause();
      },
      true);
  EXPECT_TRUE(shared_memory().empty());
}

TEST(Errors, DestroyedPeerQueuePair) {
  run_sides(
      {},
      [](Peer& peer) {
        Endpoint endpoint;
        Address to = endpoint.exchange(peer);
        peer.meet();
        ASSERT_EQ(endpoint.write(to, 0, 8), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_RETRY_EXC_ERR);
        peer.meet();
      },
      [](Peer& peer) {
        {
          Endpoint endpoint;
          endpoint.exchange(peer);
        }
        peer.meet();
        peer.meet();
      });
}

}  // namespace
}  // namespace softverbs_test
