// What goes wrong: links that break and come back or do not, nodes that die, freeze, abort or
// close, settings that differ, plans that do not fit.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "tests/rail/nodes.h"

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

// Memory of a node and an endless ring: each round of each exchange every node sends `bytes` to the
// next and receives as many from the one before.
class Ring {
 public:
  Ring(Node& node, uint64_t bytes, uint32_t rounds)
      : node_(node),
        bytes_(bytes),
        rounds_(rounds),
        source_(bytes, static_cast<uint8_t>(node.number + 1)),
        landing_(bytes * rounds),
        next_((node.number + 1) % node.cluster.nodes),
        before_((node.number + node.cluster.nodes - 1) % node.cluster.nodes) {
    source_region_ = node.add_region(source_.data(), source_.size());
    landing_region_ = node.add_region(landing_.data(), landing_.size());
  }

  // Each returns the first result that is not OK.
  tide_rail_result begin(int timeout_ms, uint64_t* exchange) {
    std::fill(landing_.begin(), landing_.end(), 0);
    const tide_rail_memory landing{landing_region_, 0, landing_.size()};
    tide_rail_result result =
        node_.library.begin(node_.rail, &landing, "ring", timeout_ms, exchange);
    for (uint32_t round = 0; round < rounds_ && result == TIDE_RAIL_OK; ++round) {
      result = node_.library.expect(node_.rail, *exchange, before_, round, {});
      if (result == TIDE_RAIL_OK) result = send(*exchange, round, {});
    }
    return result != TIDE_RAIL_OK ? result : node_.library.end(node_.rail, *exchange);
  }
  tide_rail_result send(uint64_t exchange, uint32_t round, tide_rail_flag start) {
    const tide_rail_range range{0, round * bytes_, bytes_, -1};
    tide_rail_transfer transfer = {};
    transfer.node = next_;
    transfer.round = round;
    transfer.source = {source_region_, 0, bytes_};
    transfer.ranges = &range;
    transfer.range_count = 1;
    transfer.start = start;
    return node_.library.send(node_.rail, exchange, &transfer);
  }
  tide_rail_result turn(int timeout_ms = 0) {
    uint64_t exchange = 0;
    const tide_rail_result result = begin(timeout_ms, &exchange);
    if (result != TIDE_RAIL_OK) return result;
    const tide_rail_result end = node_.library.wait(node_.rail, exchange);
    if (end == TIDE_RAIL_OK) verify();
    return end;
  }
  void verify() {
    const auto wanted = static_cast<uint8_t>(before_ + 1);
    node_.check(std::count(landing_.begin(), landing_.end(), wanted) ==
                    static_cast<std::ptrdiff_t>(landing_.size()),
                "the ring brought wrong bytes");
  }
  // Turns until one fails.
  tide_rail_result until_failure(int timeout_ms = 0) {
    tide_rail_result result = TIDE_RAIL_OK;
    while (result == TIDE_RAIL_OK) result = turn(timeout_ms);
    return result;
  }
  std::vector<uint8_t>& landing() { return landing_; }
  uint32_t landing_region() const { return landing_region_; }
  uint32_t source_region() const { return source_region_; }

 private:
  Node& node_;
  const uint64_t bytes_;
  const uint32_t rounds_;
  std::vector<uint8_t> source_, landing_;
  uint32_t source_region_ = 0, landing_region_ = 0;
  const int next_, before_;
};

void set_port(int host, int up) {
  if (const char* command = getenv("RAIL_SET_PORT"); command != nullptr) {  // in the VM
    const std::string line =
        std::string(command) + " " + std::to_string(host) + " " + std::to_string(up);
    if (std::system(line.c_str()) != 0) std::abort();
    return;
  }
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* set = reinterpret_cast<int (*)(const char*, int, int)>(
      library == nullptr ? nullptr : dlsym(library, "softverbs_set_port"));
  if (set == nullptr || set("sv0", host, up) != 0) std::abort();
}

std::vector<int> zeros(int nodes) { return std::vector<int>(static_cast<size_t>(nodes), 0); }

// "text holds a and b": for messages that must name something.
testing::AssertionResult names(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (text.find(word) == std::string::npos) {
      return testing::AssertionFailure() << "\"" << text << "\" does not name \"" << word << "\"";
    }
  }
  return testing::AssertionSuccess();
}

// Retries end after some 50 ms; in the VM, where everything takes longer, after 1 s.
const bool in_vm = getenv("RAIL_DEVICES") != nullptr;
const std::vector<std::string> kImpatient = {in_vm ? "TIDE_NET_TIMEOUT=16" : "TIDE_NET_TIMEOUT=12",
                                             "TIDE_NET_RETRY_COUNT=3"};

// ---- links ----

void cut_for_3_s(tide_rail_pacing pacing, int queue_pairs) {
  Cluster cluster;
  cluster.nodes = in_vm ? 2 : 3;  // the VM has two devices
  cluster.pacing = pacing;
  cluster.queue_pairs = queue_pairs;
  cluster.environment = kImpatient;
  // Slow enough that the cut is in mid-transfer: an exchange takes about 60 ms.
  cluster.environment.push_back("SOFTVERBS_LINK=2Gb/s,20us");
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 2 << 20, 7);
    node.must(ring.turn(), "turn");
    node.barrier();
    const uint64_t start = now_ns();
    std::thread cutter;
    if (node.number == 1) {
      cutter = std::thread([] {
        usleep(20000);
        set_port(1, 0);
        sleep(3);
        set_port(1, 1);
      });
    }
    for (int i = 0; i < 4; ++i) node.must(ring.turn(), "turn");
    node.check(now_ns() - start > 3 * kSecond, "the cut was not in the way");
    if (cutter.joinable()) cutter.join();
    tide_rail_stats stats;
    node.must(node.library.get_stats(node.rail, &stats), "stats");
    node.check(node.number != 1 || stats.repairs + 1 >= static_cast<uint64_t>(node.cluster.nodes),
               "links were not repaired");
    node.check(node.error().empty(), "an error: " + node.error());
    node.barrier();
  });
  EXPECT_EQ(run.wait(30), zeros(cluster.nodes));
}
TEST(Links, CutInMidRoundHead) { cut_for_3_s(TIDE_RAIL_PACE_HEAD, 2); }
TEST(Links, CutInMidRoundOff) { cut_for_3_s(TIDE_RAIL_PACE_OFF, 1); }

TEST(Links, NotHealed) {
  Cluster cluster;
  cluster.environment = kImpatient;
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 1 << 20, 3);
    node.must(ring.turn(), "turn");
    node.barrier();
    if (node.number == 0) set_port(0, 0);
    const uint64_t start = now_ns();
    const tide_rail_result result = ring.until_failure(1500);
    const uint64_t took = now_ns() - start;
    node.check(result == TIDE_RAIL_TIMEOUT || result == TIDE_RAIL_PEER,
               "result " + std::to_string(result));
    node.check(took > kSecond && took < 3 * kSecond, "it took " + std::to_string(took) + " ns");
    node.leave_error();
  });
  EXPECT_EQ(run.wait(20), zeros(2));
  EXPECT_TRUE(
      names(run.board().errors[0], {"node 1", "sv0 port 1", "round", "exchange", "(ring)"}));
  EXPECT_TRUE(
      names(run.board().errors[1], {"node 0", "sv0 port 1", "round", "exchange", "(ring)"}));
  // At least one saw it with its own eyes.
  const std::string both = std::string(run.board().errors[0]) + run.board().errors[1];
  EXPECT_TRUE(
      names(both, {"the link to it is", "sv0 port 1 is", "last trouble", "check that node"}));
}

// ---- deaths ----

// Every survivor ends with an error that names the dead node, well inside the timeout.
void kill_one(uint64_t seed) {
  std::mt19937_64 random(seed);
  Cluster cluster;
  cluster.nodes = 2 + static_cast<int>(random() % 4);
  cluster.pacing = static_cast<tide_rail_pacing>(random() % 3);
  cluster.queue_pairs = 1 + static_cast<int>(random() % 3);
  cluster.timeout_ms = 4000;
  const int victim = static_cast<int>(random() % static_cast<uint64_t>(cluster.nodes));
  const uint64_t delay_us = random() % 40000;
  const std::string name = "node " + std::to_string(victim);
  SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(cluster.nodes) + " nodes, " +
               name + " after " + std::to_string(delay_us) + " us");
  Processes run(cluster, [&](Node& node) {
    node.open();
    Ring ring(node, 100'000, 5);
    node.board.words[1].fetch_add(1);
    tide_rail_result result = node.try_connect();
    if (result == TIDE_RAIL_OK) result = ring.until_failure();
    const std::string error = node.error();
    node.leave_error();
    node.check(result == TIDE_RAIL_PEER || result == TIDE_RAIL_TIMEOUT,
               "result " + std::to_string(result));
    node.check(error.find(name) != std::string::npos, error);
    node.check(error.find("sv0") != std::string::npos, error);
  });
  while (run.board().words[1].load() < static_cast<uint64_t>(cluster.nodes)) usleep(100);
  usleep(static_cast<useconds_t>(delay_us));
  kill(run.pid(victim), SIGKILL);
  std::vector<int> wanted = zeros(cluster.nodes);
  wanted[static_cast<size_t>(victim)] = -SIGKILL;
  const uint64_t killed = now_ns();
  EXPECT_EQ(run.wait(10), wanted);
  EXPECT_LT(now_ns() - killed, 5 * kSecond);
}
TEST(Deaths, Kill) {
  const char* wanted = getenv("RAIL_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 20;
  for (int i = 0; i < kills && !HasFailure(); ++i) kill_one(static_cast<uint64_t>(i) + 1);
}

// In mid-exchange the message says where it was.
TEST(Deaths, NamesTheRound) {
  Cluster cluster;
  cluster.nodes = in_vm ? 2 : 3;
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 1000, 2);
    node.must(ring.turn(), "turn");
    node.barrier();
    if (node.number == 1) raise(SIGKILL);
    node.check(ring.until_failure() == TIDE_RAIL_PEER, node.error());
    node.leave_error();
  });
  std::vector<int> wanted = zeros(cluster.nodes);
  wanted[1] = -SIGKILL;
  EXPECT_EQ(run.wait(30), wanted);
  for (int node = 0; node < cluster.nodes; node += 2) {
    EXPECT_TRUE(names(run.board().errors[node],
                      {"rail 0 (", " port 1)", "node 1", "exchange", "(ring)", "pid"}));
  }
}

TEST(Deaths, FrozenNode) {
  Cluster cluster;
  cluster.nodes = 3;
  cluster.timeout_ms = 1000;
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 1000, 2);
    node.must(ring.turn(), "turn");
    node.barrier();
    if (node.number == 1) raise(SIGSTOP);
    const uint64_t start = now_ns();
    const tide_rail_result result = ring.until_failure();
    node.check(result == TIDE_RAIL_TIMEOUT || result == TIDE_RAIL_PEER, node.error());
    node.check(now_ns() - start < 2 * kSecond, "it took too long");
    node.leave_error();
    node.board.words[0].fetch_add(1);
    if (node.number != 1) pause();
  });
  const uint64_t start = now_ns();
  while (run.board().words[0].load() < 2 && now_ns() - start < 10 * kSecond) usleep(1000);
  for (const int node : {0, 2}) EXPECT_TRUE(names(run.board().errors[node], {"node 1"}));
}

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
    refused("no PCI device \"0000:ff:1f.7\"", TIDE_RAIL_BAD_ARGUMENT,
            [](Options& o) { o.near = "0000:ff:1f.7"; });
    refused("core 4000", TIDE_RAIL_SYSTEM, [](Options& o) { o.core = 4000; });
  });
  EXPECT_EQ(run.wait(10), zeros(2));
}

// ---- ends ----

TEST(Ends, Abort) {
  Cluster cluster;
  cluster.nodes = 3;
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 50'000, 4);
    node.must(ring.turn(), "turn");
    node.barrier();
    if (node.number == 2) {
      node.must(node.library.abort(node.rail, "the loss is NaN"), "abort");
      uint64_t exchange = 0;
      node.check(ring.begin(0, &exchange) == TIDE_RAIL_ABORTED, node.error());
    } else {
      const uint64_t start = now_ns();
      node.check(ring.until_failure() == TIDE_RAIL_PEER, node.error());
      node.check(now_ns() - start < kSecond, "it took too long");
    }
    node.leave_error();
    node.barrier();
  });
  EXPECT_EQ(run.wait(10), zeros(3));
  for (const char* error : {run.board().errors[0], run.board().errors[1], run.board().errors[2]}) {
    EXPECT_TRUE(names(error, {"node 2", "the loss is NaN"}));
  }
}

// The last acknowledgements are not lost with a node that closes at once.
TEST(Ends, CloseInOrder) {
  for (const auto pacing : {TIDE_RAIL_PACE_HEAD, TIDE_RAIL_PACE_OFF}) {
    Cluster cluster;
    cluster.nodes = 4;
    cluster.pacing = pacing;
    cluster.timeout_ms = 5000;
    Processes run(cluster, [](Node& node) {
      for (int i = 0; i < 8; ++i) {
        node.rail = nullptr;
        node.connect();
        Ring ring(node, static_cast<uint64_t>(1000 + 40000 * i), 3);
        node.must(ring.turn(), "turn");
        node.close();
        node.barrier();
      }
    });
    EXPECT_EQ(run.wait(30), zeros(4));
  }
}

// One that has done its part leaves; the others go on without it.
TEST(Ends, OthersGoOn) {
  Cluster cluster;
  cluster.nodes = 3;
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 10'000, 2);
    node.must(ring.turn(), "turn");
    if (node.number == 2) return;  // closes
    const int peer = 1 - node.number;
    for (int i = 0; i < 100; ++i) {
      uint64_t exchange = 0;
      node.must(node.library.begin(node.rail, nullptr, "pair", 0, &exchange), "begin");
      node.must(node.library.expect(node.rail, exchange, peer, 0, {}), "expect");
      tide_rail_transfer transfer = {};
      transfer.node = peer;
      node.must(node.library.send(node.rail, exchange, &transfer), "send");
      node.must(node.library.end(node.rail, exchange), "end");
      node.must(node.library.wait(node.rail, exchange), "wait");
      usleep(1000);
    }
    // Now it is wanted. Who notices first tells the other.
    uint64_t exchange = 0;
    tide_rail_result result = node.library.begin(node.rail, nullptr, "late", 0, &exchange);
    tide_rail_transfer transfer = {};
    transfer.node = 2;
    if (result == TIDE_RAIL_OK) result = node.library.send(node.rail, exchange, &transfer);
    node.check(result == TIDE_RAIL_PEER, "it is gone");
    node.leave_error();
  });
  EXPECT_EQ(run.wait(20), zeros(3));
  const std::string first = run.board().errors[0];
  EXPECT_TRUE(names(first, {"node 2"}));
}

TEST(Ends, CloseWithWorkInFlight) {
  Cluster cluster;
  cluster.nodes = 2;
  cluster.environment = {"SOFTVERBS_LINK=1Gb/s,20us"};
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 4 << 20, 2);
    uint64_t exchange = 0;
    node.must(ring.begin(0, &exchange), "begin");
    usleep(15000);  // of 64 ms
    if (node.number == 0) {
      const uint64_t start = now_ns();
      node.close();
      node.check(now_ns() - start < kSecond, "close waits");
      std::vector<uint8_t> before = ring.landing();
      node.check(std::count(before.begin(), before.end(), 0) > 0, "all was there already");
      usleep(100000);
      node.check(before == ring.landing(), "memory was written after close");
      node.board.words[0] = 1;
    } else {
      node.check(node.library.wait(node.rail, exchange) == TIDE_RAIL_PEER, node.error());
      node.leave_error();
      while (node.board.words[0].load() == 0) usleep(1000);
    }
  });
  EXPECT_EQ(run.wait(10), zeros(2));
  EXPECT_TRUE(names(run.board().errors[1], {"node 0", "closed its rail", "exchange 1 (ring)"}));
}

TEST(Ends, ChildOfFork) {
  Cluster cluster;
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 10'000, 2);
    node.must(ring.turn(), "turn");
    const pid_t child = fork();
    if (child == 0) {
      uint64_t exchange = 0;
      if (node.library.begin(node.rail, nullptr, "", 0, &exchange) != TIDE_RAIL_SYSTEM) _exit(1);
      if (std::strstr(node.library.error(node.rail), "child") == nullptr) _exit(2);
      node.library.close(node.rail);
      std::exit(0);  // with static destructors
    }
    int status = 0;
    waitpid(child, &status, 0);
    node.check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child " + std::to_string(status));
    for (int i = 0; i < 5; ++i) node.must(ring.turn(), "turn");
    node.barrier();
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
