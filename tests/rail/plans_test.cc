// Nodes that do not fit together, plans that do not fit, and the flags that start transfers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "tests/rail/ring.h"

namespace {

// ---- unlike nodes ----

void refused(const char* words, std::function<void(Node&, tide_rail_options&)> change,
             const char* environment = nullptr) {
  SCOPED_TRACE(words);
  Cluster cluster;
  cluster.nodes = 3;
  cluster.change = std::move(change);
  if (environment != nullptr) cluster.environment = {environment};
  Processes run(cluster, [](Node& node) {
    node.open();
    node.barrier();
    const uint64_t start = now_ns();
    const tide_rail_result result = node.try_connect();
    node.check(result == TIDE_RAIL_PEER, "result " + std::to_string(result));
    node.check(now_ns() - start < 3 * kSecond, "it took too long");
    node.leave_error();
    node.barrier();
  });
  EXPECT_EQ(run.wait(20), zeros(3));
  for (int node = 0; node < 3; ++node) {
    EXPECT_TRUE(names(run.board().errors[node], {words, "node 1"}));
  }
}
TEST(Unlike, Pacing) {
  refused("pacing (0 off, 1 head, 2 full) is", [](Node& node, tide_rail_options& options) {
    if (node.number == 1) options.pacing = TIDE_RAIL_PACE_FULL;
  });
}
TEST(Unlike, HeadBytes) {
  refused("head_bytes is", [](Node& node, tide_rail_options& options) {
    if (node.number == 1) options.head_bytes = 12345;
  });
}
TEST(Unlike, QueuePairs) {
  refused("the number of queue pairs is", [](Node& node, tide_rail_options& options) {
    if (node.number == 1) options.queue_pairs = 5;
  });
}
TEST(Unlike, Rail) {
  refused("the rail is", [](Node& node, tide_rail_options& options) {
    if (node.number == 1) options.rail = 3;
  });
}

TEST(Unlike, MissingNode) {
  Cluster cluster;
  cluster.timeout_ms = 700;
  Processes run(cluster, [](Node& node) {
    node.open();
    if (node.number == 1) {
      node.barrier();
      pause();
    }
    node.check(node.try_connect() == TIDE_RAIL_TIMEOUT, node.error());
    node.leave_error();
    node.board.words[0] = 1;
  });
  const uint64_t start = now_ns();
  while (run.board().words[0].load() == 0 && now_ns() - start < 5 * kSecond) usleep(1000);
  EXPECT_TRUE(names(run.board().errors[0], {"not connected within 700 ms", "node 1"}));
}

// ---- plans that do not fit ----

TEST(Plans, BeyondWhatIsExposed) {
  Cluster cluster;
  Processes run(cluster, [](Node& node) {
    node.connect();
    std::vector<uint8_t> memory(10000, 7);
    const uint32_t region = node.add_region(memory.data(), memory.size());
    // Node 1 exposes 1000 bytes in the middle of its region.
    const tide_rail_memory landing{region, 4000, 1000};
    uint64_t exchange = 0;
    node.must(node.library.begin(node.rail, &landing, "outside", 0, &exchange), "begin");
    if (node.number == 0) {
      const tide_rail_range ranges[] = {{0, 0, 500, -1}, {0, 500, 501, -1}};
      tide_rail_transfer transfer = {};
      transfer.node = 1;
      transfer.source = {region, 0, 10000};
      transfer.ranges = ranges;
      transfer.range_count = 2;
      node.must(node.library.send(node.rail, exchange, &transfer), "send");
    } else {
      node.must(node.library.expect(node.rail, exchange, 0, 0, {}), "expect");
    }
    const tide_rail_result end = node.library.end(node.rail, exchange);
    node.check(
        (end == TIDE_RAIL_OK ? node.library.wait(node.rail, exchange) : end) == TIDE_RAIL_PEER,
        node.error());
    node.leave_error();
    node.check(std::count(memory.begin(), memory.end(), 7) == 10000, "memory was written");
    node.barrier();
  });
  EXPECT_EQ(run.wait(10), zeros(2));
  EXPECT_TRUE(
      names(run.board().errors[0], {"1 bytes beyond", "node 1", "(1000 bytes)", "(outside)"}));
  EXPECT_TRUE(names(run.board().errors[1], {"node 0 reports", "beyond"}));
}

TEST(Plans, UnannouncedOrder) {
  Cluster cluster;
  cluster.timeout_ms = 1000;
  Processes run(cluster, [](Node& node) {
    node.connect();
    // Node 1 never begins what node 0 begins.
    uint64_t exchange = 0;
    if (node.number == 0) {
      const uint64_t start = now_ns();
      node.must(node.library.begin(node.rail, nullptr, "lonely", 0, &exchange), "begin");
      tide_rail_transfer transfer = {};
      transfer.node = 1;
      transfer.round = 4;
      node.must(node.library.send(node.rail, exchange, &transfer), "send");
      node.must(node.library.end(node.rail, exchange), "end");
      node.check(node.library.wait(node.rail, exchange) == TIDE_RAIL_TIMEOUT, node.error());
      node.check(now_ns() - start < 2 * kSecond, "it took too long");
      node.leave_error();
    }
    node.barrier();
  });
  EXPECT_EQ(run.wait(10), zeros(2));
  EXPECT_TRUE(names(run.board().errors[0],
                    {"node 1", "round 4 of exchange 1 (lonely)", "time limit 1000 ms"}));
}

TEST(Plans, BadArguments) {
  Cluster cluster;
  Processes run(cluster, [](Node& node) {
    const RailLibrary& rail = node.library;
    auto bad = [&](tide_rail_result result, const char* what) {
      node.check(result == TIDE_RAIL_BAD_ARGUMENT,
                 std::string(what) + " returned " + std::to_string(result));
    };
    node.open();
    uint64_t exchange = 0;
    bad(rail.begin(node.rail, nullptr, "", 0, &exchange), "begin before connect");
    node.connect();
    const char* addresses[2] = {"", ""};
    bad(rail.connect(node.rail, addresses), "connect again");
    Ring ring(node, 1000, 1);
    const uint32_t region = ring.source_region();
    const tide_rail_memory too_long{region, 500, 501}, unknown{77, 0, 1};
    bad(rail.begin(node.rail, &too_long, "", 0, &exchange), "landing beyond the region");
    bad(rail.begin(node.rail, &unknown, "", 0, &exchange), "landing of no region");
    bad(rail.begin(node.rail, nullptr, "", -1, &exchange), "a negative timeout");
    bad(rail.test(node.rail, 1), "test of what has not begun");
    node.must(rail.begin(node.rail, nullptr, "", 0, &exchange), "begin");
    const tide_rail_range inside{0, 0, 10, -1}, outside{995, 0, 6, -1}, huge{8, 0, UINT64_MAX, -1};
    auto transfer = [&](int to, uint32_t round, const tide_rail_range& range) {
      tide_rail_transfer transfer = {};
      transfer.node = to;
      transfer.round = round;
      transfer.source = {region, 0, 1000};
      transfer.ranges = &range;
      transfer.range_count = 1;
      return rail.send(node.rail, exchange, &transfer);
    };
    const int peer = 1 - node.number;
    bad(transfer(node.number, 0, inside), "a send to itself");
    bad(transfer(2, 0, inside), "a send to nobody");
    bad(transfer(peer, 1024, inside), "a round too high");
    bad(transfer(peer, 0, outside), "a range beyond the source");
    bad(transfer(peer, 0, huge), "a range that wraps around");
    bad(rail.expect(node.rail, exchange, node.number, 0, {}), "an expect from itself");
    bad(rail.expect(node.rail, exchange + 1, peer, 0, {}), "an expect in no exchange");
    bad(rail.wait_landed(node.rail, exchange, peer, 0), "waiting for the unannounced");
    bad(rail.wait_sent(node.rail, exchange, peer, 0), "waiting for the unsent");
    bad(rail.wait(node.rail, exchange), "waiting before the end");
    node.must(rail.expect(node.rail, exchange, peer, 3, {}), "expect");
    bad(rail.expect(node.rail, exchange, peer, 3, {}), "expecting twice");
    tide_rail_transfer empty = {};
    empty.node = peer;
    empty.round = 3;
    node.must(rail.send(node.rail, exchange, &empty), "an empty send");
    bad(rail.send(node.rail, exchange, &empty), "the same round again");
    node.must(rail.end(node.rail, exchange), "end");
    bad(rail.end(node.rail, exchange), "ending twice");
    node.must(rail.wait_landed(node.rail, exchange, peer, 3), "wait_landed");
    node.must(rail.wait(node.rail, exchange), "wait");
    node.must(rail.wait(node.rail, exchange), "wait again");
    node.must(rail.wait_landed(node.rail, exchange, peer, 3), "wait_landed afterwards");
    node.must(rail.test(node.rail, exchange), "test");
    node.must(rail.remove_region(node.rail, ring.source_region()), "unregister");
    bad(rail.remove_region(node.rail, ring.source_region()), "unregister twice");
    node.check(node.error().empty(), node.error());
    node.barrier();
  });
  EXPECT_EQ(run.wait(10), zeros(2));
}

TEST(Plans, Options) {
  Cluster cluster;
  Processes run(cluster, [](Node& node) {
    auto refused = [&](const char* word, tide_rail_result wanted, auto change) {
      tide_rail_options options = {};
      options.struct_bytes = sizeof(options);
      options.nodes = 2;
      options.queue_pairs = 1;
      options.timeout_ms = 1000;
      options.head_bytes = 1;
      options.core = -1;
      options.traffic_class = options.control_traffic_class = -1;
      options.interface = "lo";
      change(options);
      char error[512] = "";
      tide_rail* rail = nullptr;
      const tide_rail_result result = node.library.open(&options, &rail, error, sizeof(error));
      node.check(result == wanted && rail == nullptr,
                 std::string(word) + ": " + std::to_string(result) + " " + error);
      node.check(std::strstr(error, word) != nullptr, error);
    };
    using Options = tide_rail_options;
    refused("releases", TIDE_RAIL_BAD_ARGUMENT, [](Options& o) { o.struct_bytes = 8; });
    refused("nodes is 1", TIDE_RAIL_BAD_ARGUMENT, [](Options& o) { o.nodes = 1; });
    refused("node is 2", TIDE_RAIL_BAD_ARGUMENT, [](Options& o) { o.node = 2; });
    refused("queue_pairs is 17", TIDE_RAIL_BAD_ARGUMENT, [](Options& o) { o.queue_pairs = 17; });
    refused("pacing is 3", TIDE_RAIL_BAD_ARGUMENT, [](Options& o) { o.pacing = 3; });
    refused("head_bytes is 0", TIDE_RAIL_BAD_ARGUMENT, [](Options& o) {
      o.pacing = TIDE_RAIL_PACE_HEAD;
      o.head_bytes = 0;
    });
    refused("\"mlx9\"", TIDE_RAIL_NO_DEVICE, [](Options& o) { o.devices = "mlx9"; });
    refused("rails is 1", TIDE_RAIL_BAD_ARGUMENT, [](Options& o) {
      static const char* const gpus[] = {"0000:19:00.0"};
      o.gpus = gpus;
      o.rails = 1;
      o.rail = 1;
    });
    refused("core 4000", TIDE_RAIL_SYSTEM, [](Options& o) { o.core = 4000; });
  });
  EXPECT_EQ(run.wait(10), zeros(2));
}

// A GPU that sysfs does not show is no reason to fail: the rail-th NIC, and a line that says so.
TEST(Plans, UnknownGpu) {
  Cluster cluster;
  static std::string said;
  cluster.change = [](Node& node, tide_rail_options& options) {
    static const char* const gpus[] = {"0000:ff:1f.6", "0000:ff:1f.7"};
    options.gpus = gpus;
    options.rails = 2;
    options.rail = node.mode;
    options.log = [](void*, int level, const char* line) {
      if (level == 2) said += line;
    };
  };
  Processes run(cluster, [](Node& node) {
    for (node.mode = 0; node.mode < 2; ++node.mode) {
      said.clear();
      node.open();
      const std::string gpu = "0000:ff:1f." + std::to_string(6 + node.mode);
      node.check(said.find("as sysfs does not show GPU " + gpu) != std::string::npos, said);
      const std::string wanted = "sv" + std::to_string(node.mode);
      const bool in_vm = getenv("RAIL_DEVICES") != nullptr;
      node.check(in_vm || node.library.device(node.rail) == wanted, said);
      node.close();
    }
  });
  EXPECT_EQ(run.wait(10), zeros(2));
}

// ---- triggers ----

TEST(Flags, StartSentLanded) {
  Cluster cluster;
  cluster.spin_ns = 0;
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 300'000, 2);
    volatile uint32_t start = 0xfffffff0, sent = 0, landed = 0;
    const int peer = 1 - node.number;
    for (uint32_t turn = 1; turn <= 20; ++turn) {
      std::fill(ring.landing().begin(), ring.landing().end(), 0);
      const uint32_t value = 0xfffffff0 + turn;  // wraps around on the way
      const tide_rail_memory landing{ring.landing_region(), 0, ring.landing().size()};
      uint64_t exchange = 0;
      node.must(node.library.begin(node.rail, &landing, "flags", 0, &exchange), "begin");
      for (uint32_t round = 0; round < 2; ++round) {
        const tide_rail_flag flag{&landed, turn * 2 + round};
        node.must(node.library.expect(node.rail, exchange, peer, round, flag), "expect");
        const tide_rail_range range{0, round * 300'000, 300'000, -1};
        tide_rail_transfer transfer = {};
        transfer.node = peer;
        transfer.round = round;
        transfer.source = {ring.source_region(), 0, 300'000};
        transfer.ranges = &range;
        transfer.range_count = 1;
        if (round == 1) transfer.start = {&start, value};
        transfer.sent = {&sent, turn * 2 + round};
        node.must(node.library.send(node.rail, exchange, &transfer), "send");
      }
      node.must(node.library.end(node.rail, exchange), "end");
      // The other node may be ahead, never behind.
      auto reach = [&](volatile uint32_t& word, uint32_t wanted) {
        const uint64_t begun = now_ns();
        while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) < wanted) {
          node.check(now_ns() - begun < 5 * kSecond, "a flag is not stored");
          usleep(50);
        }
      };
      reach(sent, turn * 2);
      reach(landed, turn * 2);
      node.check(node.library.test(node.rail, exchange) == TIDE_RAIL_PENDING, "not done");
      if (turn < 4) usleep(5000);
      node.check(sent == turn * 2, "it left before its flag was raised");
      __atomic_store_n(&start, value, __ATOMIC_RELEASE);
      reach(sent, turn * 2 + 1);
      reach(landed, turn * 2 + 1);
      node.must(node.library.wait(node.rail, exchange), "wait");
      ring.verify();
    }
    node.barrier();
  });
  EXPECT_EQ(run.wait(20), zeros(2));
}

TEST(Flags, NeverRaised) {
  Cluster cluster;
  cluster.timeout_ms = 800;
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 1000, 1);
    if (node.number == 0) {
      uint32_t never = 0;
      uint64_t exchange = 0;
      const tide_rail_memory landing{ring.landing_region(), 0, 1000};
      node.must(node.library.begin(node.rail, &landing, "stuck", 0, &exchange), "begin");
      node.must(node.library.expect(node.rail, exchange, 1, 0, {}), "expect");
      node.must(ring.send(exchange, 0, {&never, 1}), "send");
      node.must(node.library.end(node.rail, exchange), "end");
      const tide_rail_result result = node.library.wait(node.rail, exchange);
      node.check(result == TIDE_RAIL_TIMEOUT,
                 "result " + std::to_string(result) + " " + node.error());
    } else {
      // More patient, so that the culprit speaks first.
      const tide_rail_result result = ring.turn(5000);
      node.check(result == TIDE_RAIL_PEER, "result " + std::to_string(result));
    }
    node.leave_error();
    node.barrier();
  });
  EXPECT_EQ(run.wait(10), zeros(2));
  EXPECT_TRUE(names(run.board().errors[0], {"flag of round 0 of exchange 1 (stuck)", "800 ms"}));
  EXPECT_TRUE(names(run.board().errors[1], {"node 0"}));
}

}  // namespace
