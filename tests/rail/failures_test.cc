// What goes wrong on the way: links that break and come back or do not, nodes that die, freeze,
// abort or close.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "tests/rail/ring.h"

namespace {

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
    Ring ring(node, in_vm ? 1 << 19 : 2 << 20, in_vm ? 4 : 7);
    node.must(ring.turn(), "turn");
    node.barrier();
    const uint64_t start = now_ns();
    std::atomic<uint64_t>&over = node.board.words[0], &stop = node.board.words[1];
    std::thread cutter;
    if (node.number == 1) {
      cutter = std::thread([&over] {
        usleep(20000);
        set_port(1, 0);
        sleep(3);
        set_port(1, 1);
        over = 1;
      });
    }
    // Turns until it is over, the same number on every node.
    while (true) {
      if (node.number == 1) stop = over.load();
      node.barrier();
      if (stop.load() != 0) break;
      node.barrier();
      node.must(ring.turn(), "turn");
    }
    node.must(ring.turn(), "turn");
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
    // A node that dies while others connect is missed at their deadline; to end takes a process
    // more time, under a sanitizer much more.
    const uint64_t took = now_ns() - node.board.words[2].load();
    node.check(took < 5 * kSecond, "it took " + std::to_string(took) + " ns");
    const std::string error = node.error();
    node.leave_error();
    node.check(result == TIDE_RAIL_PEER || result == TIDE_RAIL_TIMEOUT,
               "result " + std::to_string(result));
    node.check(error.find(name) != std::string::npos, error);
    node.check(error.find("sv0") != std::string::npos, error);
  });
  const uint64_t started = now_ns();
  while (run.board().words[1].load() < static_cast<uint64_t>(cluster.nodes)) {
    ASSERT_LT(now_ns() - started, 20 * kSecond) << "a node does not open its rail";
    usleep(100);
  }
  usleep(static_cast<useconds_t>(delay_us));
  run.board().words[2] = now_ns();
  kill(run.pid(victim), SIGKILL);
  std::vector<int> wanted = zeros(cluster.nodes);
  wanted[static_cast<size_t>(victim)] = -SIGKILL;
  EXPECT_EQ(run.wait(10), wanted);
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

// A data loader that was forked from a node, and lives on when it dies, does not hide its death.
void die_before_child(bool exec) {
  Cluster cluster;
  cluster.nodes = in_vm ? 2 : 3;
  Processes run(cluster, [exec](Node& node) {
    node.connect();
    Ring ring(node, 1000, 2);
    node.must(ring.turn(), "turn");
    node.barrier();
    if (node.number == 1) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        if (exec) execlp("sleep", "sleep", "30", static_cast<char*>(nullptr));
        while (true) pause();
      }
      node.board.words[0] = static_cast<uint64_t>(child);
      raise(SIGKILL);
    }
    const uint64_t start = now_ns();
    node.check(ring.until_failure() == TIDE_RAIL_PEER, node.error());
    // The probes ask after 15 s.
    node.check(now_ns() - start < 3 * kSecond, "it took too long");
    node.check(kill(static_cast<pid_t>(node.board.words[0].load()), 0) == 0, "the child is dead");
    node.leave_error();
  });
  std::vector<int> wanted = zeros(cluster.nodes);
  wanted[1] = -SIGKILL;
  EXPECT_EQ(run.wait(30), wanted);
  const auto child = static_cast<pid_t>(run.board().words[0].load());
  ASSERT_GT(child, 0);
  kill(child, SIGKILL);
  for (int node = 0; node < cluster.nodes; node += 2) {
    EXPECT_TRUE(names(run.board().errors[node], {"node 1", "went away"}));
  }
}
TEST(Deaths, ForkedChildLivesOn) { die_before_child(false); }
TEST(Deaths, ProgramOfAChildLivesOn) { die_before_child(true); }

// A job that is done may end by os._exit or a signal: that is no error for nodes which want nothing
// more of it.
void end_between_exchanges(bool by_signal) {
  Cluster cluster;
  cluster.nodes = in_vm ? 2 : 3;
  static std::mutex mutex;  // of what the progress thread said, by level
  static std::string lines[4];
  cluster.change = [](Node&, tide_rail_options& options) {
    options.log = [](void*, int level, const char* line) {
      const std::lock_guard lock(mutex);
      lines[level] += line;
    };
  };
  const auto said = [](int level) {
    const std::lock_guard lock(mutex);
    return lines[level];
  };
  Processes run(cluster, [by_signal, said](Node& node) {
    node.connect();
    Ring ring(node, 1000, 2);
    for (int i = 0; i < 3; ++i) node.must(ring.turn(), "turn");
    node.barrier();
    if (node.number == 1) {
      if (by_signal) raise(SIGKILL);
      _exit(0);
    }
    const uint64_t start = now_ns();
    while (said(2).find("node 1 went away between exchanges") == std::string::npos) {
      node.check(now_ns() - start < 5 * kSecond, "nobody noticed: " + said(2));
      usleep(1000);
    }
    usleep(200'000);
    node.check(node.error().empty(), "an error: " + node.error());
    node.check(said(0).empty() && said(1).empty(), "it said " + said(0) + said(1));
    // Who has what it waited for may go; the other one wants more.
    node.board.words[0].fetch_add(1);
    while (node.board.words[0].load() + 1 < static_cast<uint64_t>(node.cluster.nodes)) usleep(100);
    if (node.number == 2) return;  // closes
    uint64_t exchange = 0;
    node.check(ring.begin(0, &exchange) == TIDE_RAIL_PEER, "the exchange began");
    node.check(now_ns() - start < 6 * kSecond, "it took too long");
    node.leave_error();
  });
  std::vector<int> wanted = zeros(cluster.nodes);
  wanted[1] = by_signal ? -SIGKILL : 0;
  EXPECT_EQ(run.wait(30), wanted);
  EXPECT_TRUE(names(run.board().errors[0], {"rail 0 (", "node 1 went away before exchange 4 (ring)",
                                            "pid", "closed by the peer"}));
}
TEST(Deaths, KilledBetweenExchanges) { end_between_exchanges(true); }
TEST(Deaths, ExitBetweenExchanges) { end_between_exchanges(false); }

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
  cluster.environment = {"SOFTVERBS_LINK=0.2Gb/s,20us"};
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 4 << 20, 2);
    uint64_t exchange = 0;
    node.must(ring.begin(0, &exchange), "begin");
    node.barrier();
    usleep(15000);  // of 330 ms
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

// Between exchanges the thread sleeps, and the memory it uses does not grow.
TEST(Ends, IdleCostsNothing) {
  Cluster cluster;
  cluster.spin_ns = 100'000;
  Processes run(cluster, [](Node& node) {
    node.connect();
    Ring ring(node, 10'000, 3);
    for (int i = 0; i < 100; ++i) node.must(ring.turn(), "turn");
    node.barrier();
    const size_t memory = mallinfo2().uordblks;
    for (int i = 0; i < 300; ++i) node.must(ring.turn(), "turn");
    node.barrier();
    node.check(mallinfo2().uordblks <= memory + 20'000, "memory grows");
    auto used_us = [] {
      rusage usage;
      getrusage(RUSAGE_SELF, &usage);
      return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
             usage.ru_stime.tv_usec;
    };
    usleep(20'000);
    const auto before = used_us();
    usleep(500'000);
    node.check(used_us() - before < 50'000, "the thread does not sleep");
    node.must(ring.turn(), "turn");
    node.barrier();
  });
  EXPECT_EQ(run.wait(30), zeros(2));
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

}  // namespace
