// softverbs as a program sees it: devices, memory, queue pairs, completions, two processes.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>
#include <thread>

#include "tests/softverbs/softverbs.h"
#include "tests/softverbs/test/harness.h"

namespace softverbs_test {
namespace {

volatile uint8_t* peek(Endpoint& endpoint, size_t offset) {
  return endpoint.buffer.data() + offset;
}

TEST(Devices, AreWhatTheEnvironmentSays) {
  run_alone({{"SOFTVERBS_DEVICES", "3"},
             {"SOFTVERBS_NAME", "mlx"},
             {"SOFTVERBS_SPEED", "400"},
             {"SOFTVERBS_MTU", "1024"}},
            [] {
              int count = 0;
              ibv_device** list = ibv_get_device_list(&count);
              ASSERT_EQ(count, 3);
              EXPECT_STREQ(ibv_get_device_name(list[2]), "mlx2");
              EXPECT_EQ(list[3], nullptr);
              EXPECT_NE(ibv_get_device_guid(list[0]), ibv_get_device_guid(list[1]));
              ibv_context* context = ibv_open_device(list[1]);
              ibv_free_device_list(list);
              ASSERT_NE(context, nullptr);
              ibv_port_attr port{};
              ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
              EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
              EXPECT_EQ(port.active_speed, 128);  // NDR
              EXPECT_EQ(port.active_width, 2);    // 4X
              EXPECT_EQ(port.active_mtu, IBV_MTU_1024);
              EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
              EXPECT_NE(port.lid, 0);
              EXPECT_EQ(ibv_query_port(context, 2, &port), EINVAL);
              ibv_device_attr_ex extended{};
              ASSERT_EQ(ibv_query_device_ex(context, nullptr, &extended), 0);
              EXPECT_EQ(extended.orig_attr.phys_port_cnt, 1);
              EXPECT_EQ(extended.orig_attr.atomic_cap, IBV_ATOMIC_HCA);
              EXPECT_EQ(ibv_close_device(context), 0);
            });
}

TEST(Devices, RoceHasFourAddresses) {
  run_alone({{"SOFTVERBS_LINK_LAYER", "ethernet"}, {"SOFTVERBS_HOST", "3"}}, [] {
    ibv_context* context = open_device(1);
    ibv_gid_entry entries[8];
    ASSERT_EQ(ibv_query_gid_table(context, entries, 8, 0), 4);
    EXPECT_EQ(entries[0].gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V1));
    EXPECT_EQ(entries[3].gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V2));
    const uint8_t expected[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 3, 2};
    EXPECT_EQ(std::memcmp(entries[3].gid.raw, expected, 16), 0);
    ibv_gid_entry one;
    ASSERT_EQ(ibv_query_gid_ex(context, 1, 1, &one, 0), 0);
    EXPECT_EQ(one.gid.raw[0], 0xfe);
    EXPECT_EQ(ibv_query_gid_ex(context, 1, 4, &one, 0), ENODATA);
    ibv_port_attr port{};
    ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
    EXPECT_EQ(port.lid, 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  });
}

TEST(Devices, BadSettingsAreErrors) {
  const Environment bad[] = {{{"SOFTVERBS_DEVICES", "many"}},
                             {{"SOFTVERBS_MTU", "1500"}},
                             {{"SOFTVERBS_LINK", "fast"}},
                             {{"SOFTVERBS_LINK", "10Gb/s,5"}},
                             {{"SOFTVERBS_FAULTS", "/nonexistent"}},
                             {{"SOFTVERBS_FAULTS", script("drop device=sv9\n")}},
                             {{"SOFTVERBS_FAULTS", script("explode\n")}},
                             {{"SOFTVERBS_FAULTS", script("error after=3\n")}}};
  for (const Environment& environment : bad) {
    run_alone(environment, [&] {
      int count = 7;
      EXPECT_EQ(ibv_get_device_list(&count), nullptr) << environment.begin()->second;
      EXPECT_EQ(errno, EINVAL);
      EXPECT_EQ(count, 0);
    });
  }
}

// NCCL's IB transport resolves these by dlvsym; without one of the first list it does not start.
TEST(Devices, SymbolsHaveTheVersionsProgramsAskFor) {
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  for (const char* name :
       {"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device",
        "ibv_close_device",    "ibv_get_async_event",  "ibv_ack_async_event", "ibv_query_device",
        "ibv_query_port",      "ibv_query_gid",        "ibv_query_qp",        "ibv_alloc_pd",
        "ibv_dealloc_pd",      "ibv_reg_mr",           "ibv_dereg_mr",        "ibv_create_cq",
        "ibv_destroy_cq",      "ibv_create_qp",        "ibv_modify_qp",       "ibv_destroy_qp",
        "ibv_fork_init",       "ibv_event_type_str"}) {
    EXPECT_NE(dlvsym(library, name, "IBVERBS_1.1"), nullptr) << name;
  }
  EXPECT_NE(dlvsym(library, "ibv_create_comp_channel", "IBVERBS_1.0"), nullptr);
  EXPECT_NE(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8"), nullptr);
  EXPECT_NE(dlvsym(library, "ibv_query_ece", "IBVERBS_1.10"), nullptr);
  EXPECT_NE(dlvsym(library, "ibv_set_ece", "IBVERBS_1.10"), nullptr);
  EXPECT_NE(dlvsym(library, "_ibv_query_gid_ex", "IBVERBS_1.11"), nullptr);
  EXPECT_NE(dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"), nullptr);
}

TEST(Memory, RegistrationChecks) {
  run_alone({}, [] {
    ibv_context* context = open_device(0);
    ibv_pd* pd = ibv_alloc_pd(context);
    std::vector<char> memory(8192);
    EXPECT_EQ(ibv_reg_mr(pd, memory.data(), memory.size(), IBV_ACCESS_REMOTE_WRITE), nullptr);
    EXPECT_EQ(errno, EINVAL);
    void* nothing = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_EQ(ibv_reg_mr(pd, nothing, 4096, IBV_ACCESS_LOCAL_WRITE), nullptr);
    EXPECT_EQ(errno, EFAULT);
    // How NCCL asks whether dma-buf is supported.
    EXPECT_EQ(ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    ibv_mr* one = ibv_reg_mr(pd, memory.data(), 4096, IBV_ACCESS_LOCAL_WRITE);
    ibv_mr* two = ibv_reg_mr(pd, memory.data(), 4096, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(one, nullptr);
    ASSERT_NE(two, nullptr);
    EXPECT_NE(one->lkey, two->lkey);
    EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
    EXPECT_EQ(ibv_dereg_mr(one), 0);
    EXPECT_EQ(ibv_dereg_mr(two), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  });
}

TEST(Memory, MemfdPassesForDmaBufWhereAllowed) {
  run_sides(
      {{"SOFTVERBS_DMABUF", "1"}},
      [](Peer& peer) {
        Endpoint endpoint;
        Address to = endpoint.exchange(peer);
        std::fill(endpoint.buffer.begin(), endpoint.buffer.end(), 0x5a);
        to.memory = 0x10000;  // the offset of the registration counts from its iova
        to.rkey = peer.receive<uint32_t>();
        ASSERT_EQ(endpoint.write(to, 0, 4096), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint;
        EXPECT_EQ(ibv_reg_dmabuf_mr(endpoint.pd, 0, 4096, 0, -1, 0), nullptr);
        EXPECT_EQ(errno, EBADF);
        int memory = memfd_create("buffer", 0);
        ASSERT_EQ(ftruncate(memory, 16384), 0);
        ibv_mr* region = ibv_reg_dmabuf_mr(endpoint.pd, 4096, 8192, 0x10000, memory,
                                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        ASSERT_NE(region, nullptr);
        endpoint.exchange(peer);
        peer.send(region->rkey);
        peer.meet();
        uint8_t byte = 0;
        ASSERT_EQ(pread(memory, &byte, 1, 4096 + 4095), 1);
        EXPECT_EQ(byte, 0x5a);
        EXPECT_EQ(ibv_dereg_mr(region), 0);
        close(memory);
      });
}

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

TEST(QueuePairs, StatesAndMasks) {
  run_alone({}, [] {
    Endpoint endpoint;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(ibv_modify_qp(endpoint.qp, &attributes, IBV_QP_STATE), EINVAL);
    attributes.qp_state = IBV_QPS_INIT;
    EXPECT_EQ(ibv_modify_qp(endpoint.qp, &attributes, IBV_QP_STATE), EINVAL);  // no port
    EXPECT_EQ(endpoint.post_receive(1), EINVAL);                               // in RESET
    endpoint.to_init();
    EXPECT_EQ(endpoint.post_receive(1), 0);
    EXPECT_EQ(endpoint.write(endpoint.address(), 0, 8), EINVAL);  // not in RTS
    attributes.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(ibv_modify_qp(endpoint.qp, &attributes, IBV_QP_STATE), 0);
    EXPECT_EQ(endpoint.wait().status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(endpoint.post_receive(2), 0);
    EXPECT_EQ(endpoint.wait().wr_id, 2u);
    attributes.qp_state = IBV_QPS_RESET;
    EXPECT_EQ(ibv_modify_qp(endpoint.qp, &attributes, IBV_QP_STATE), 0);
    // To itself, as NCCL flushes.
    endpoint.connect(endpoint.address());
    endpoint.buffer[0] = 9;
    Address to = endpoint.address();
    to.memory += 100;
    EXPECT_EQ(endpoint.write(to, 0, 8), 0);
    EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
    EXPECT_EQ(endpoint.buffer[100], 9);
  });
}

// After an error both sides reset, exchange new numbers and go on: what a plugin does that
// rebuilds its queue pairs.
TEST(QueuePairs, RebuiltAfterAnError) {
  run_sides(
      {},
      [](Peer& peer) {
        Endpoint endpoint;
        Address to = endpoint.exchange(peer);
        Address wrong = to;
        wrong.rkey ^= 1;
        for (int round = 0; round < 5; ++round) {
          ASSERT_EQ(endpoint.write(wrong, 0, 8), 0);
          EXPECT_EQ(endpoint.wait().status, IBV_WC_REM_ACCESS_ERR);
          ibv_qp_attr reset{};
          reset.qp_state = IBV_QPS_RESET;
          ASSERT_EQ(ibv_modify_qp(endpoint.qp, &reset, IBV_QP_STATE), 0);
          peer.meet();
          endpoint.exchange(peer);
          ASSERT_EQ(endpoint.write(to, 0, 100000), 0);
          EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        }
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint;
        endpoint.exchange(peer);
        for (int round = 0; round < 5; ++round) {
          EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_QP_ACCESS_ERR));
          ibv_qp_attr reset{};
          reset.qp_state = IBV_QPS_RESET;
          ASSERT_EQ(ibv_modify_qp(endpoint.qp, &reset, IBV_QP_STATE), 0);
          peer.meet();
          endpoint.exchange(peer);
        }
        peer.meet();
      });
}

TEST(QueuePairs, OnlyReliableConnections) {
  run_alone({}, [] {
    Endpoint endpoint;
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = endpoint.cq;
    attributes.cap = {1, 1, 1, 1, 0};
    attributes.qp_type = IBV_QPT_UD;
    EXPECT_EQ(ibv_create_qp(endpoint.pd, &attributes), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    ibv_ece ece{1, 2, 0};
    EXPECT_EQ(ibv_set_ece(endpoint.qp, &ece), 0);
    EXPECT_EQ(ibv_query_ece(endpoint.qp, &ece), 0);
    EXPECT_EQ(ece.options, 0u);  // another vendor's
  });
}

TEST(QueuePairs, ExtendedPosting) {
  run_sides(
      {},
      [](Peer& peer) {
        Endpoint endpoint;
        Address to = endpoint.exchange(peer);
        ibv_qp_ex* qp = ibv_qp_to_qp_ex(endpoint.qp);
        uint64_t value = 0x1122334455667788;
        ibv_wr_start(qp);
        qp->wr_id = 1;
        qp->wr_flags = 0;
        ibv_wr_rdma_write(qp, to.rkey, to.memory);
        ibv_wr_set_inline_data(qp, &value, sizeof value);
        qp->wr_id = 2;
        qp->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write_imm(qp, to.rkey, to.memory + 64, htobe32(4));
        endpoint.buffer[64] = 6;
        ibv_sge part = endpoint.element(64, 1);
        ibv_wr_set_sge(qp, part.lkey, part.addr, part.length);
        ASSERT_EQ(ibv_wr_complete(qp), 0);
        EXPECT_EQ(endpoint.wait().wr_id, 2u);
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint;
        endpoint.to_init();
        ASSERT_EQ(endpoint.post_receive(1), 0);
        endpoint.exchange(peer);
        EXPECT_EQ(be32toh(endpoint.wait().imm_data), 4u);
        uint64_t value;
        std::memcpy(&value, endpoint.buffer.data(), 8);
        EXPECT_EQ(value, 0x1122334455667788u);
        EXPECT_EQ(endpoint.buffer[64], 6);
        peer.meet();
      });
}

TEST(Completions, ChannelWakesASleeper) {
  Options options;
  options.with_channel = true;
  run_sides(
      {},
      [&](Peer& peer) {
        Endpoint endpoint(options);
        Address to = endpoint.exchange(peer);
        peer.meet();
        usleep(20000);
        ASSERT_EQ(endpoint.write_immediate(to, 0, 8, 1), 0);  // not solicited
        usleep(100000);
        ASSERT_EQ(endpoint.write_immediate(to, 0, 8, 2, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        peer.meet();
      },
      [&](Peer& peer) {
        Endpoint endpoint(options);
        endpoint.to_init();
        ASSERT_EQ(endpoint.post_receive(1), 0);
        ASSERT_EQ(endpoint.post_receive(2), 0);
        ASSERT_EQ(ibv_req_notify_cq(endpoint.cq, 1), 0);
        endpoint.exchange(peer);
        pollfd readable{endpoint.channel->fd, POLLIN, 0};
        EXPECT_EQ(poll(&readable, 1, 0), 0);
        peer.meet();
        double begin = seconds();
        ASSERT_EQ(poll(&readable, 1, 5000), 1);
        EXPECT_GT(seconds() - begin, 0.08);  // the first completion was not solicited
        ibv_cq* cq = nullptr;
        void* cq_context = nullptr;
        ASSERT_EQ(ibv_get_cq_event(endpoint.channel, &cq, &cq_context), 0);
        EXPECT_EQ(cq, endpoint.cq);
        EXPECT_EQ(cq_context, &endpoint);
        ibv_ack_cq_events(cq, 1);
        EXPECT_EQ(endpoint.wait().wr_id, 1u);
        EXPECT_EQ(endpoint.wait().wr_id, 2u);
        EXPECT_EQ(poll(&readable, 1, 20), 0);  // not armed again
        peer.meet();
      });
}

TEST(Completions, OverrunIsAnEvent) {
  Options small;
  small.cqe = 2;
  run_sides(
      {},
      [&](Peer& peer) {
        Endpoint endpoint(small);
        Address to = endpoint.exchange(peer);
        for (int i = 0; i < 3; ++i) ASSERT_EQ(endpoint.write(to, 0, 8), 0);
        EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_CQ_ERR));
        peer.meet();
      },
      [&](Peer& peer) {
        Endpoint endpoint;
        endpoint.exchange(peer);
        peer.meet();
      });
}

TEST(Ports, DownAndUp) {
  Options options;
  options.device = 1;
  options.timeout = 12;
  run_sides(
      {},
      [&](Peer& peer) {
        Endpoint endpoint(options);
        ibv_context* other = open_device(0);
        Address to = endpoint.exchange(peer);
        ASSERT_EQ(softverbs_set_port("sv1", -1, 0), 0);
        ibv_port_attr port{};
        ASSERT_EQ(ibv_query_port(endpoint.context, 1, &port), 0);
        EXPECT_EQ(port.state, IBV_PORT_DOWN);
        EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_PORT_ERR));
        // Short: the retries outlast it.
        ASSERT_EQ(endpoint.write(to, 0, 8), 0);
        usleep(10000);
        ASSERT_EQ(softverbs_set_port("sv1", -1, 1), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_PORT_ACTIVE));
        // Long: they do not.
        ASSERT_EQ(softverbs_set_port("sv1", -1, 0), 0);
        ASSERT_EQ(endpoint.write(to, 0, 8), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_RETRY_EXC_ERR);
        EXPECT_FALSE(wait_event(other, IBV_EVENT_PORT_ERR, 20));
        EXPECT_EQ(ibv_close_device(other), 0);
        EXPECT_EQ(softverbs_set_port("sv7", -1, 0), ENODEV);
        peer.meet();
      },
      [&](Peer& peer) {
        Endpoint endpoint(options);
        endpoint.exchange(peer);
        EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_PORT_ERR));
        EXPECT_TRUE(wait_event(endpoint.context, IBV_EVENT_PORT_ACTIVE));
        peer.meet();
      });
}

TEST(Events, ClosingWakesTheReader) {
  run_alone({}, [] {
    ibv_context* context = open_device(0);
    std::atomic<int> code{1};
    std::thread reader([&] {
      ibv_async_event event;
      code = ibv_get_async_event(context, &event);
    });
    usleep(20000);
    EXPECT_EQ(ibv_close_device(context), 0);
    reader.join();
    EXPECT_EQ(code, -1);
  });
}

// A child that goes on by itself joins anew; its parent's objects are not disturbed by its end.
TEST(Processes, Fork) {
  run_sides(
      {},
      [](Peer& peer) {
        Endpoint endpoint;
        Address to = endpoint.exchange(peer);
        pid_t child = fork();
        if (child == 0) {
          ibv_context* context = open_device(0);
          _exit(context != nullptr && !testing::Test::HasFailure() ? 0 : 1);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        endpoint.buffer[0] = 42;
        ASSERT_EQ(endpoint.write(to, 0, 20000), 0);
        EXPECT_EQ(endpoint.wait().status, IBV_WC_SUCCESS);
        peer.meet();
      },
      [](Peer& peer) {
        Endpoint endpoint;
        endpoint.exchange(peer);
        peer.meet();
        EXPECT_EQ(*peek(endpoint, 0), 42);
      });
}

// Places of the dead are used again: more processes one after the other than a fabric holds.
TEST(Processes, ManyComeAndDie) {
  run_alone({}, [] {
    Endpoint keeper;
    for (int i = 0; i < 80; ++i) {
      pid_t child = fork();
      if (child == 0) {
        new Endpoint;  // dies with everything open
        _exit(testing::Test::HasFailure() ? 1 : 0);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_EQ(status, 0);
    }
  });
}

}  // namespace
}  // namespace softverbs_test
