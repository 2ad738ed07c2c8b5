// Bytes arrive where they should, and nowhere else: random exchanges between 2 to 8 nodes.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>

#include "tests/rail/nodes.h"

namespace {

constexpr uint8_t kUntouched = 0xee;

// The content of a node's source in an exchange.
uint8_t pattern(int node, uint64_t exchange, uint64_t at) {
  return static_cast<uint8_t>(at * 131 + (at >> 8) * 17 + static_cast<uint64_t>(node) * 29 +
                              exchange * 37 + 1);
}

struct PlannedSend {
  int from = 0, to = 0;
  uint32_t round = 0;
  std::vector<tide_rail_range> ranges;
};
struct PlannedExchange {
  std::vector<PlannedSend> sends;
};

// The same on every node. Every receiver's ranges lie apart from each other, at odd places.
PlannedExchange plan(std::mt19937_64& random, int nodes, uint64_t most_bytes, uint64_t landing) {
  PlannedExchange exchange;
  std::vector<uint64_t> used(static_cast<size_t>(nodes), 0);
  const uint32_t rounds = static_cast<uint32_t>(random() % 7);
  uint32_t round = 0;
  for (uint32_t r = 0; r < rounds; ++r, round += 1 + random() % 3) {
    std::vector<int> to(static_cast<size_t>(nodes));
    std::iota(to.begin(), to.end(), 0);
    std::shuffle(to.begin(), to.end(), random);
    for (int from = 0; from < nodes; ++from) {
      const int receiver = to[static_cast<size_t>(from)];
      if (receiver == from || random() % 5 == 0) continue;
      PlannedSend send{from, receiver, round, {}};
      const uint64_t count = random() % 4 == 0 ? random() % 40 : random() % 4;
      uint64_t& place = used[static_cast<size_t>(receiver)];
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t bytes = random() % 6 == 0 ? 0 : random() % (most_bytes / count) + 1;
        place += random() % 77;
        if (place + bytes > landing) break;
        const uint64_t local = random() % (landing - bytes);
        send.ranges.push_back({local, place, bytes, -1});
        place += bytes;
      }
      exchange.sends.push_back(std::move(send));
    }
  }
  return exchange;
}

struct Load {
  int exchanges = 50;
  uint64_t most_bytes = 200000;  // of a transfer
  uint64_t landing = 1 << 20;
  int depth = 3;  // exchanges open at a time
  uint64_t seed = 1;
};

// One node's part of the exchanges.
void take_part(Node& node, const Load& load) {
  node.connect();
  std::mt19937_64 random(load.seed);
  std::vector<std::vector<uint8_t>> landings, sources;
  std::vector<uint32_t> landing_regions, source_regions;
  for (int i = 0; i < load.depth; ++i) {
    landings.emplace_back(load.landing, kUntouched);
    sources.emplace_back(load.landing + 1);
    landing_regions.push_back(node.add_region(landings.back().data(), load.landing));
    // From the second byte: sources lie at odd addresses.
    source_regions.push_back(node.add_region(sources.back().data() + 1, load.landing));
  }
  std::vector<PlannedExchange> plans;
  for (int e = 0; e < load.exchanges; ++e) {
    plans.push_back(plan(random, node.cluster.nodes, load.most_bytes, load.landing));
  }
  std::mt19937_64 own(load.seed * 100 + static_cast<uint64_t>(node.number));
  std::vector<uint32_t> landed(1024);
  uint64_t bytes_sent = 0, bytes_received = 0, transfers = 0;
  auto verify = [&](int e) {
    const auto slot = static_cast<size_t>(e % load.depth);
    const uint64_t exchange = static_cast<uint64_t>(e) + 1;
    node.must(node.library.wait(node.rail, exchange), "wait");
    std::vector<uint8_t> wanted(load.landing, kUntouched);
    for (const PlannedSend& send : plans[static_cast<size_t>(e)].sends) {
      if (send.to != node.number) continue;
      for (const tide_rail_range& range : send.ranges) {
        for (uint64_t i = 0; i < range.bytes; ++i) {
          wanted[range.remote + i] = pattern(send.from, exchange, range.local + i);
        }
        bytes_received += range.bytes;
      }
    }
    for (uint64_t i = 0; i < load.landing; ++i) {
      if (landings[slot][i] == wanted[i]) continue;
      node.check(false, "exchange " + std::to_string(exchange) + ", byte " + std::to_string(i) +
                            " is " + std::to_string(landings[slot][i]) + ", not " +
                            std::to_string(wanted[i]));
    }
  };
  for (int e = 0; e < load.exchanges; ++e) {
    const auto slot = static_cast<size_t>(e % load.depth);
    const uint64_t exchange = static_cast<uint64_t>(e) + 1;
    if (e >= load.depth) verify(e - load.depth);
    std::fill(landings[slot].begin(), landings[slot].end(), kUntouched);
    for (uint64_t i = 0; i < load.landing; ++i) {
      sources[slot][i + 1] = pattern(node.number, exchange, i);
    }
    const tide_rail_memory landing{landing_regions[slot], 0, load.landing};
    uint64_t number = 0;
    node.must(node.library.begin(node.rail, &landing, "test", 0, &number), "begin");
    node.check(number == exchange, "exchanges are numbered from 1");
    const auto& sends = plans[static_cast<size_t>(e)].sends;
    auto expect = [&](const PlannedSend& send) {
      if (send.to != node.number) return;
      node.must(node.library.expect(node.rail, number, send.from, send.round, {}), "expect");
    };
    const bool late = own() % 3 == 0;  // announces what has come already
    if (!late) std::for_each(sends.begin(), sends.end(), expect);
    for (const PlannedSend& send : sends) {
      if (send.from != node.number) continue;
      tide_rail_transfer transfer = {};
      transfer.node = send.to;
      transfer.round = send.round;
      transfer.source = {source_regions[slot], 0, load.landing};
      transfer.ranges = send.ranges.data();
      transfer.range_count = static_cast<uint32_t>(send.ranges.size());
      node.must(node.library.send(node.rail, number, &transfer), "send");
      ++transfers;
      for (const tide_rail_range& range : send.ranges) bytes_sent += range.bytes;
    }
    if (late) std::for_each(sends.begin(), sends.end(), expect);
    node.must(node.library.end(node.rail, number), "end");
  }
  for (int e = std::max(0, load.exchanges - load.depth); e < load.exchanges; ++e) verify(e);
  tide_rail_stats stats;
  node.must(node.library.get_stats(node.rail, &stats), "stats");
  node.check(stats.exchanges == static_cast<uint64_t>(load.exchanges), "exchanges are counted");
  node.check(stats.transfers == transfers, "transfers are counted");
  node.check(stats.bytes_sent == bytes_sent, "bytes sent are counted");
  node.barrier();
}

void expect_all_well(const Cluster& cluster, Load load, int limit_s = 60) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr bool kSlow = true;
#else
  constexpr bool kSlow = false;
#endif
  if (kSlow || getenv("RAIL_DEVICES") != nullptr) {  // instrumented, or in the VM
    load.exchanges = load.exchanges / 5 + 1;
    limit_s *= 2;
  }
  Processes run(cluster, [&](Node& node) { take_part(node, load); });
  EXPECT_EQ(run.wait(limit_s), std::vector<int>(static_cast<size_t>(cluster.nodes), 0));
}

TEST(Transfers, TwoNodes) { expect_all_well({}, {}); }

// Every pacing with every number of queue pairs; heads small enough that most transfers have tails.
TEST(Transfers, EveryPacingAndQueuePairs) {
  for (const auto pacing : {TIDE_RAIL_PACE_OFF, TIDE_RAIL_PACE_HEAD, TIDE_RAIL_PACE_FULL}) {
    for (int queue_pairs = 1; queue_pairs <= 4; ++queue_pairs) {
      SCOPED_TRACE("pacing " + std::to_string(pacing) + ", queue pairs " +
                   std::to_string(queue_pairs));
      Cluster cluster;
      cluster.pacing = pacing;
      cluster.queue_pairs = queue_pairs;
      cluster.nodes = 2 + queue_pairs % 3;
      Load load;
      load.exchanges = 40;
      load.most_bytes = 400000;
      load.seed = static_cast<uint64_t>(pacing * 10 + queue_pairs);
      expect_all_well(cluster, load);
    }
  }
}

TEST(Transfers, EightNodes) {
  Cluster cluster;
  cluster.nodes = 8;
  cluster.queue_pairs = 2;
  Load load;
  load.exchanges = 30;
  load.landing = 1 << 19;
  expect_all_well(cluster, load);
}

// More exchanges than can be open: begin waits, nothing is lost.
TEST(Transfers, ManySmallExchanges) {
  Cluster cluster;
  cluster.nodes = 4;
  cluster.spin_ns = 0;
  Load load;
  load.exchanges = 800;
  load.depth = 30;
  load.most_bytes = 3000;
  load.landing = 40000;
  expect_all_well(cluster, load);
}

TEST(Transfers, LargeOnes) {
  Cluster cluster;
  cluster.head_bytes = 8 << 20;
  cluster.queue_pairs = 2;
  Load load;
  load.exchanges = 4;
  load.depth = 1;
  load.most_bytes = 64 << 20;
  load.landing = 160 << 20;
  expect_all_well(cluster, load);
}

// The all-gather by recursive doubling as shim/collective does it: everything is handed in at once,
// ranges wait for the rounds that bring their bytes.
void gather(Node& node, uint64_t shard, int turns) {
  node.connect();
  const int nodes = node.cluster.nodes;
  std::vector<uint8_t> memory(shard * static_cast<uint64_t>(nodes));
  const uint32_t region = node.add_region(memory.data(), memory.size());
  const tide_rail_memory all{region, 0, memory.size()};
  auto place = [&](int owner) { return shard * static_cast<uint64_t>(owner % nodes); };
  for (int turn = 0; turn < turns; ++turn) {
    std::fill(memory.begin(), memory.end(), 0);
    std::memset(&memory[place(node.number)], turn * 10 + node.number + 1, shard);
    // Nobody may write into memory that is still being filled, nor read what is cleared again.
    node.barrier();
    uint64_t exchange = 0;
    node.must(node.library.begin(node.rail, &all, "gather", 0, &exchange), "begin");
    std::vector<int> came(static_cast<size_t>(nodes), -1);  // round, by distance
    uint32_t round = 0;
    for (int distance = 1; distance < nodes; distance *= 2, ++round) {
      const int count = std::min(distance, nodes - distance);
      const int from = (node.number + distance) % nodes;
      for (int i = 0; i < count; ++i)
        came[static_cast<size_t>(distance + i)] = static_cast<int>(round);
      node.must(node.library.expect(node.rail, exchange, from, round, {}), "expect");
    }
    round = 0;
    for (int distance = 1; distance < nodes; distance *= 2, ++round) {
      std::vector<tide_rail_range> ranges;
      for (int i = 0; i < std::min(distance, nodes - distance); ++i) {
        ranges.push_back(
            {place(node.number + i), place(node.number + i), shard, came[static_cast<size_t>(i)]});
      }
      tide_rail_transfer transfer = {};
      transfer.node = (node.number + nodes - distance) % nodes;
      transfer.round = round;
      transfer.source = all;
      transfer.ranges = ranges.data();
      transfer.range_count = static_cast<uint32_t>(ranges.size());
      node.must(node.library.send(node.rail, exchange, &transfer), "send");
    }
    node.must(node.library.end(node.rail, exchange), "end");
    node.must(node.library.wait(node.rail, exchange), "wait");
    for (int owner = 0; owner < nodes; ++owner) {
      const auto first = memory.begin() + static_cast<std::ptrdiff_t>(place(owner));
      node.check(std::count(first, first + static_cast<std::ptrdiff_t>(shard),
                            static_cast<uint8_t>(turn * 10 + owner + 1)) ==
                     static_cast<std::ptrdiff_t>(shard),
                 "the shard of node " + std::to_string(owner) + " is wrong");
    }
    node.barrier();
  }
}

TEST(Transfers, Forwarding) {
  for (int nodes = 2; nodes <= 8; ++nodes) {
    SCOPED_TRACE(nodes);
    Cluster cluster;
    cluster.nodes = nodes;
    cluster.queue_pairs = 2;
    cluster.pacing = static_cast<tide_rail_pacing>(nodes % 3);
    cluster.head_bytes = 128 << 10;
    Processes run(cluster, [](Node& node) { gather(node, 150'001, 5); });
    EXPECT_EQ(run.wait(30), std::vector<int>(static_cast<size_t>(nodes), 0));
  }
}

// Memory that is registered by file descriptor, as a GPU's is: each landing is flushed first.
TEST(Transfers, DmaBuf) {
  Cluster cluster;
  cluster.environment = {"SOFTVERBS_DMABUF=1"};
  Processes run(cluster, [](Node& node) {
    node.connect();
    constexpr uint64_t kBytes = 1 << 20;
    const int fd = memfd_create("gpu", 0);
    node.check(ftruncate(fd, 2 * kBytes) == 0, "memfd");
    void* memory = mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    auto* base = static_cast<uint8_t*>(memory) + kBytes;
    uint32_t region = 0;
    node.must(node.library.add_region(node.rail, base, kBytes, fd, kBytes, &region), "register");
    const int peer = 1 - node.number;
    for (uint32_t turn = 1; turn <= 30; ++turn) {
      std::memset(base, node.number + 1, kBytes / 2);
      volatile uint32_t landed = 0;
      const tide_rail_memory landing{region, kBytes / 2, kBytes / 2};
      uint64_t exchange = 0;
      node.must(node.library.begin(node.rail, &landing, "gpu", 0, &exchange), "begin");
      node.must(node.library.expect(node.rail, exchange, peer, 0, {&landed, turn}), "expect");
      const tide_rail_range range{0, 0, kBytes / 2, -1};
      tide_rail_transfer transfer = {};
      transfer.node = peer;
      transfer.source = {region, 0, kBytes / 2};
      transfer.ranges = &range;
      transfer.range_count = 1;
      node.must(node.library.send(node.rail, exchange, &transfer), "send");
      node.must(node.library.end(node.rail, exchange), "end");
      node.must(node.library.wait(node.rail, exchange), "wait");
      node.check(landed == turn, "done before its flag was stored");
      node.check(std::count(base + kBytes / 2, base + kBytes, peer + 1) == kBytes / 2, "wrong");
      node.barrier();
      std::memset(base + kBytes / 2, 0, kBytes / 2);
      node.barrier();
    }
  });
  EXPECT_EQ(run.wait(20), (std::vector<int>{0, 0}));
}

// Where the device cannot register it, the caller hears so and the rail goes on.
TEST(Transfers, NoDmaBuf) {
  Cluster cluster;
  Processes run(cluster, [](Node& node) {
    node.connect();
    std::vector<uint8_t> memory(4096);
    uint32_t region = 0;
    const int fd = memfd_create("gpu", 0);
    node.check(
        node.library.add_region(node.rail, memory.data(), 4096, fd, 0, &region) == TIDE_RAIL_SYSTEM,
        "registered");
    node.check(node.error().empty(), node.error());
    node.add_region(memory.data(), 4096);
    node.barrier();
  });
  EXPECT_EQ(run.wait(20), (std::vector<int>{0, 0}));
}

void expect_well_with_faults(const char* script, int queue_pairs) {
  Cluster cluster;
  cluster.nodes = 3;
  cluster.queue_pairs = queue_pairs;
  cluster.environment = {std::string("SOFTVERBS_FAULTS=tests/rail/faults/") + script,
                         // 1 ms, so that lost packets are soon sent again, or given up.
                         "TIDE_NET_TIMEOUT=8", "TIDE_NET_RETRY_COUNT=4"};
  Load load;
  load.exchanges = 60;
  load.seed = 7;
  expect_all_well(cluster, load);
}

// Links that break every few messages, by lost packets and lost acknowledgements alike.
TEST(Faults, Chaos) {
  const char* wanted = getenv("RAIL_CHAOS");
  const int runs = wanted != nullptr ? std::atoi(wanted) : 3;
  for (int seed = 1; seed <= runs && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Cluster cluster;
    cluster.nodes = 2 + seed % 3;
    cluster.queue_pairs = 1 + seed % 4;
    cluster.pacing = static_cast<tide_rail_pacing>(seed % 3);
    const std::string script = testing::TempDir() + "rail_chaos_" + std::to_string(getpid());
    std::ofstream(script) << "seed " << seed << "\ndrop probability=0.12\n"
                          << "drop-ack probability=0.12\n";
    cluster.environment = {"SOFTVERBS_FAULTS=" + script, "TIDE_NET_TIMEOUT=4",
                           "TIDE_NET_RETRY_COUNT=1"};
    Load load;
    load.exchanges = 30;
    load.seed = static_cast<uint64_t>(seed);
    expect_all_well(cluster, load);
    unlink(script.c_str());
  }
}

TEST(Faults, Reordering) { expect_well_with_faults("reorder.txt", 4); }
TEST(Faults, Loss) { expect_well_with_faults("loss.txt", 2); }
TEST(Faults, LateMessages) { expect_well_with_faults("late.txt", 2); }
TEST(Faults, RetriesExceeded) { expect_well_with_faults("retry_exceeded.txt", 2); }
TEST(Faults, Flushed) { expect_well_with_faults("flushed.txt", 3); }
TEST(Faults, FatalQueuePairs) { expect_well_with_faults("fatal.txt", 1); }

}  // namespace
