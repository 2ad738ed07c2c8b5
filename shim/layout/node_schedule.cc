#include "shim/layout/node_schedule.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "include/tide/error.h"

namespace tide::layout {
namespace {

constexpr std::array<std::pair<Schedule, const char*>, 3> kNames = {
    {{Schedule::kNearFirst, "near-first"},
     {Schedule::kFarFirst, "far-first"},
     {Schedule::kRing, "ring"}}};

// From here on a ring takes at most 1.04 times the wire floor at 400 Gb/s and 5 us one way.
constexpr uint64_t kRingBytes = uint64_t{8} << 20;

// What a node sends in a round, as distances from itself, and how far the receiver lies before it.
struct Step {
  int distance = 0;
  NodeShards sends;  // first counts from the sender
};

std::vector<Step> steps_of(Schedule schedule, int nodes) {
  std::vector<Step> steps;
  if (schedule == Schedule::kRing) {
    for (int r = 0; r + 1 < nodes; ++r) steps.push_back({1, {.first = r, .stride = 1, .count = 1}});
    return steps;
  }
  for (int distance = 1; distance < nodes; distance *= 2) {
    if (schedule == Schedule::kNearFirst) {
      const int count = std::min(distance, nodes - distance);
      steps.push_back({distance, {.first = 0, .stride = 1, .count = count}});
    } else {
      const int stride = 2 * distance;
      const int count = (nodes - distance + stride - 1) / stride;
      steps.push_back({distance, {.first = 0, .stride = stride, .count = count}});
    }
  }
  if (schedule == Schedule::kFarFirst) std::reverse(steps.begin(), steps.end());
  return steps;
}

void check(int nodes, int node) {
  if (nodes < 1 || node < 0 || node >= nodes) {
    throw Error("there is no node " + std::to_string(node) + " among " + std::to_string(nodes) +
                " nodes");
  }
}

}  // namespace

const char* name_of(Schedule schedule) {
  for (const auto& [value, name] : kNames) {
    if (value == schedule) return name;
  }
  return "?";
}

Schedule schedule_of(const std::string& name) {
  std::string all;
  for (const auto& [value, known] : kNames) {
    if (name == known) return value;
    all += (all.empty() ? "" : ", ") + std::string(known);
  }
  throw Error("there is no schedule '" + name + "'", "take one of " + all);
}

std::vector<NodeRound> node_rounds(Schedule schedule, int nodes, int node) {
  check(nodes, node);
  std::vector<NodeRound> rounds;
  for (const Step& step : steps_of(schedule, nodes)) {
    NodeRound round{.send_to = (node + nodes - step.distance) % nodes,
                    .receive_from = (node + step.distance) % nodes,
                    .sends = step.sends,
                    .receives = step.sends};
    round.sends.first = (node + step.sends.first) % nodes;
    round.receives.first = (round.receive_from + step.sends.first) % nodes;
    rounds.push_back(round);
  }
  return rounds;
}

std::vector<int> arrival_rounds(const std::vector<NodeRound>& rounds, int nodes, int node) {
  check(nodes, node);
  std::vector<int> arrivals(nodes, -1);
  for (size_t r = 0; r < rounds.size(); ++r) {
    const NodeShards& shards = rounds[r].receives;
    for (int i = 0; i < shards.count; ++i) {
      arrivals[(shards.first + i * shards.stride) % nodes] = static_cast<int>(r);
    }
  }
  return arrivals;
}

std::vector<NodeRange> node_ranges(const GatherLayout& layout, int nodes, int local_ranks, int node,
                                   int local_rank, const std::vector<NodeRound>& rounds,
                                   size_t round) {
  check(nodes, node);
  if (local_ranks < 1 || layout.world != nodes * local_ranks) {
    throw Error("a layout of " + std::to_string(layout.world) + " ranks does not fit " +
                std::to_string(nodes) + " nodes of " + std::to_string(local_ranks) + " ranks");
  }
  if (local_rank < 0 || local_rank >= local_ranks || round >= rounds.size()) {
    throw Error("there is no rail " + std::to_string(local_rank) + ", round " +
                std::to_string(round) + " in a schedule of " + std::to_string(local_ranks) +
                " rails and " + std::to_string(rounds.size()) + " rounds");
  }
  const std::vector<int> arrivals = arrival_rounds(rounds, nodes, node);
  const NodeShards& sends = rounds[round].sends;
  // The node-shards in the order of their arrival: the earlier it is here, the earlier it can go.
  std::vector<std::pair<int, int>> shards;  // (arrival, node-shard)
  for (int i = 0; i < sends.count; ++i) {
    const int shard = (sends.first + i * sends.stride) % nodes;
    shards.emplace_back(arrivals[shard], shard);
  }
  std::sort(shards.begin(), shards.end());

  std::vector<NodeRange> ranges;
  for (size_t first = 0; first < shards.size();) {
    const int after = shards[first].first;
    size_t end = first;
    while (end < shards.size() && shards[end].first == after) ++end;
    for (size_t p = 0; p < layout.pieces.size(); ++p) {
      const uint64_t bytes = layout.pieces[p].shard;
      if (bytes == 0) continue;
      for (size_t i = first; i < end; ++i) {
        const int rank = shards[i].second * local_ranks + local_rank;
        const uint64_t offset = layout.parameter_major(rank, p);
        if (!ranges.empty() && ranges.back().after == after &&
            ranges.back().offset + ranges.back().bytes == offset) {
          ranges.back().bytes += bytes;
        } else {
          ranges.push_back({.offset = offset, .bytes = bytes, .after = after});
        }
      }
    }
    first = end;
  }
  return ranges;
}

ScheduleChoice choose_schedule(uint64_t bytes, int nodes) {
  if (nodes < 1) throw Error("a schedule of " + std::to_string(nodes) + " nodes");
  ScheduleChoice choice{.schedule = Schedule::kNearFirst, .head_bytes = uint64_t{8} << 20};
  // Up to three nodes everyone sends its own shard to each of the others: nothing to choose.
  if (nodes > 3) choice.schedule = bytes < kRingBytes ? Schedule::kFarFirst : Schedule::kRing;
  return choice;
}

}  // namespace tide::layout
