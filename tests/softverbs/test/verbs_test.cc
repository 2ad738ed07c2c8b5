// softverbs as a program sees it: devices, registration, queue pair states, completions, events,
// processes. Transfers are in transfers_test.cc.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/softverbs/softverbs.h"
#include "tests/softverbs/test/harness.h"

namespace softverbs_test {
namespace {

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

// ThreadSanitizer cannot follow threads of a child whose parent had some.
#ifdef __SANITIZE_THREAD__
constexpr bool kForkedThreads = false;
#else
constexpr bool kForkedThreads = true;
#endif

// A child that goes on by itself joins anew; its parent's objects are not disturbed by its end.
TEST(Processes, Fork) {
  if (!kForkedThreads) GTEST_SKIP() << "forks with threads";
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
        EXPECT_EQ(endpoint.buffer[0], 42);
      });
}

// Places of the dead are used again: more processes one after the other than a fabric holds.
TEST(Processes, ManyComeAndDie) {
  if (!kForkedThreads) GTEST_SKIP() << "forks with threads";
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
