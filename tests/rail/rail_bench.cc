// What pacing costs and what early acknowledgement saves: all-gathers of one size by recursive
// doubling over softverbs' link model, unpaced, with early-acknowledged heads, and with whole
// transfers acknowledged, against the wire floor. The modes take turns in the same processes.
//
//   rail_bench [--nodes 2,4,8] [--mib 64] [--turns 5] [--dilation 400] [--json FILE]
//
// Two cores cannot copy what 8 NICs of 100 Gb/s move. So time is dilated: the modelled link has
// 100/N Gb/s and N x 10 us, and what was measured is divided by N. That keeps every ratio of the
// link (bytes in flight, shares, rounds); the software's own time is understated N-fold. The
// fastest of the turns counts: the model gives the link's time, a busy machine only adds to it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/rail/nodes.h"

namespace {

constexpr double kGigabits = 100;  // of the real link
constexpr double kLatencyUs = 10;  // one way
constexpr uint64_t kMib = 1 << 20;

struct Mode {
  const char* name;
  tide_rail_pacing pacing;
  uint64_t head_bytes;
};
constexpr Mode kModes[] = {{"off", TIDE_RAIL_PACE_OFF, 1},
                           {"head 1 MiB", TIDE_RAIL_PACE_HEAD, 1 * kMib},
                           {"head 8 MiB", TIDE_RAIL_PACE_HEAD, 8 * kMib},
                           {"full", TIDE_RAIL_PACE_FULL, 1}};
constexpr size_t kModeCount = sizeof(kModes) / sizeof(kModes[0]);

struct Plan {
  std::vector<int> nodes = {2, 4, 8};
  uint64_t mib = 64;
  int turns = 5;
  double dilation = 400;
  std::string json;
};

// Everything a node sends in one all-gather, in order.
struct Round {
  int to, from;
  std::vector<tide_rail_range> ranges;
};
std::vector<Round> doubling(int node, int nodes, uint64_t shard) {
  std::vector<Round> rounds;
  std::vector<int> came(static_cast<size_t>(nodes), -1);
  for (int distance = 1; distance < nodes; distance *= 2) {
    Round round{(node + nodes - distance) % nodes, (node + distance) % nodes, {}};
    const int count = std::min(distance, nodes - distance);
    for (int i = 0; i < count; ++i) {
      const uint64_t place = shard * static_cast<uint64_t>((node + i) % nodes);
      round.ranges.push_back({place, place, shard, came[static_cast<size_t>(i)]});
    }
    for (int i = 0; i < count; ++i) {
      came[static_cast<size_t>(distance + i)] = static_cast<int>(rounds.size());
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

void one_gather(Node& node, const std::vector<Round>& rounds, const tide_rail_memory& memory) {
  uint64_t exchange = 0;
  node.must(node.library.begin(node.rail, &memory, "all-gather", 0, &exchange), "begin");
  for (uint32_t r = 0; r < rounds.size(); ++r) {
    node.must(node.library.expect(node.rail, exchange, rounds[r].from, r, {}), "expect");
    tide_rail_transfer transfer = {};
    transfer.node = rounds[r].to;
    transfer.round = r;
    transfer.source = memory;
    transfer.ranges = rounds[r].ranges.data();
    transfer.range_count = static_cast<uint32_t>(rounds[r].ranges.size());
    node.must(node.library.send(node.rail, exchange, &transfer), "send");
  }
  node.must(node.library.end(node.rail, exchange), "end");
  node.must(node.library.wait(node.rail, exchange), "wait");
}

// The time of the slowest node, in ns, goes to words[turn * modes + mode].
void measure(Node& node, const Plan& plan) {
  const uint64_t bytes = plan.mib * kMib;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  const uint64_t shard = bytes / static_cast<uint64_t>(node.cluster.nodes);
  std::memset(static_cast<char*>(memory) + shard * static_cast<uint64_t>(node.number),
              node.number + 1, shard);
  const std::vector<Round> rounds = doubling(node.number, node.cluster.nodes, shard);
  tide_rail* rails[kModeCount];
  uint32_t regions[kModeCount];
  for (size_t mode = 0; mode < kModeCount; ++mode) {
    node.mode = static_cast<int>(mode);
    node.open();
    node.must(node.try_connect(), "connect");
    regions[mode] = node.add_region(memory, bytes);
    rails[mode] = node.rail;
    node.barrier();
  }
  for (int turn = -1; turn < plan.turns; ++turn) {  // the first warms up
    for (size_t mode = 0; mode < kModeCount; ++mode) {
      node.rail = rails[mode];
      node.barrier();
      const uint64_t start = now_ns();
      one_gather(node, rounds, {regions[mode], 0, bytes});
      const uint64_t took = now_ns() - start;
      if (turn < 0) continue;
      auto& slowest = node.board.words[static_cast<size_t>(turn) * kModeCount + mode];
      uint64_t seen = slowest.load();
      while (seen < took && !slowest.compare_exchange_weak(seen, took)) {
      }
    }
  }
  for (int owner = 0; owner < node.cluster.nodes; ++owner) {
    const auto* first = static_cast<const char*>(memory) + shard * static_cast<uint64_t>(owner);
    node.check(*first == owner + 1 && first[shard - 1] == owner + 1, "wrong bytes");
  }
  node.barrier();
  for (tide_rail* rail : rails) {
    node.rail = rail;
    node.close();
  }
}

std::string decimal(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

Plan parse(int count, char** words) {
  Plan plan;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string option = words[i];
    const char* value = words[i + 1];
    if (option == "--nodes") {
      plan.nodes.clear();
      std::stringstream list(value);
      for (std::string item; std::getline(list, item, ',');) plan.nodes.push_back(std::stoi(item));
    } else if (option == "--mib") {
      plan.mib = std::stoull(value);
    } else if (option == "--turns") {
      plan.turns = std::stoi(value);
    } else if (option == "--dilation") {
      plan.dilation = std::stod(value);
    } else if (option == "--json") {
      plan.json = value;
    } else {
      std::fprintf(stderr, "unknown option %s\n", option.c_str());
      std::exit(2);
    }
  }
  if (plan.turns < 1 || static_cast<size_t>(plan.turns) * kModeCount > kWords) {
    std::fprintf(stderr, "--turns must be 1 to %zu\n", kWords / kModeCount);
    std::exit(2);
  }
  return plan;
}

}  // namespace

int main(int count, char** words) {
  const Plan plan = parse(count, words);
  nlohmann::json report;
  report["mib"] = plan.mib;
  report["dilation"] = plan.dilation;
  std::printf(
      "%llu MiB all-gather, recursive doubling, 100 Gb/s, 10 us one way, time dilated %g-fold\n",
      static_cast<unsigned long long>(plan.mib), plan.dilation);
  std::printf("%5s  %-10s  %8s  %8s  %8s  %s\n", "nodes", "pacing", "us", "floor", "+ %",
              "of what full costs over off, hidden");
  for (const int nodes : plan.nodes) {
    Cluster cluster;
    cluster.nodes = nodes;
    cluster.timeout_ms = 60000;
    cluster.spin_ns = 0;  // more processes than cores
    cluster.environment = {"SOFTVERBS_LINK=" + decimal(kGigabits / plan.dilation) + "Gb/s," +
                           decimal(kLatencyUs * plan.dilation) + "us"};
    cluster.change = [](Node& node, tide_rail_options& options) {
      options.pacing = kModes[node.mode].pacing;
      options.head_bytes = kModes[node.mode].head_bytes;
    };
    Processes run(cluster, [&](Node& node) { measure(node, plan); });
    const std::vector<int> ends = run.wait(300);
    if (std::any_of(ends.begin(), ends.end(), [](int end) { return end != 0; })) {
      std::fprintf(stderr, "a node failed\n");
      return 1;
    }
    const double bits = static_cast<double>(plan.mib * kMib) * 8 * (nodes - 1) / nodes;
    const double floor_us = bits / kGigabits / 1000 + kLatencyUs;
    double time[kModeCount];
    for (size_t mode = 0; mode < kModeCount; ++mode) {
      uint64_t fastest = UINT64_MAX;
      for (int turn = 0; turn < plan.turns; ++turn) {
        const size_t word = static_cast<size_t>(turn) * kModeCount + mode;
        fastest = std::min(fastest, run.board().words[word].load());
      }
      time[mode] = static_cast<double>(fastest) / 1000 / plan.dilation;
    }
    const double off = time[0], full = time[kModeCount - 1];
    for (size_t mode = 0; mode < kModeCount; ++mode) {
      const double hidden = full > off ? (full - time[mode]) / (full - off) * 100 : 0;
      const bool shown = nodes > 2 && kModes[mode].pacing == TIDE_RAIL_PACE_HEAD;
      std::printf("%5d  %-10s  %8.1f  %8.1f  %8.2f  %s\n", nodes, kModes[mode].name, time[mode],
                  floor_us, (time[mode] / floor_us - 1) * 100,
                  shown ? (decimal(std::round(hidden)) + " %").c_str() : "");
      nlohmann::json row = {{"nodes", nodes},
                            {"pacing", kModes[mode].name},
                            {"us", time[mode]},
                            {"floor_us", floor_us}};
      if (shown) row["hidden_percent"] = hidden;
      report["rows"].push_back(row);
    }
  }
  if (!plan.json.empty()) std::ofstream(plan.json) << report.dump(2) << "\n";
  return 0;
}
