#include "tests/sim/workload.h"

#include <algorithm>

namespace tide::sim {
namespace {

void mark(std::vector<int16_t>& arrival, uint64_t from, uint64_t bytes, int round) {
  if (arrival.empty()) return;
  std::fill_n(arrival.begin() + static_cast<ptrdiff_t>(from), bytes, static_cast<int16_t>(round));
}

// What the others send to a node is what it receives.
void announce(ExchangePlan& plan) {
  for (size_t n = 0; n < plan.nodes.size(); ++n) {
    for (PlannedSend& send : plan.nodes[n].sends) {
      NodePlan& receiver = plan.nodes[static_cast<size_t>(send.peer)];
      receiver.receives.push_back({.round = send.round, .peer = static_cast<int>(n)});
      for (const pacing::Range& range : send.ranges) {
        send.bytes += range.bytes;
        mark(receiver.arrival, range.remote, range.bytes, send.round);
      }
    }
  }
  for (NodePlan& node : plan.nodes) {
    std::sort(node.receives.begin(), node.receives.end(),
              [](const auto& a, const auto& b) { return a.round < b.round; });
  }
}

}  // namespace

ExchangePlan all_gather_plan(layout::Schedule schedule, const layout::GatherLayout& layout,
                             int nodes, int local_ranks, int rail, bool places) {
  ExchangePlan plan;
  plan.nodes.resize(static_cast<size_t>(nodes));
  for (int n = 0; n < nodes; ++n) {
    NodePlan& node = plan.nodes[static_cast<size_t>(n)];
    if (places) node.arrival.assign(layout.slot, NodePlan::kNone);
    for (size_t p = 0; p < layout.pieces.size(); ++p) {
      mark(node.arrival, layout.parameter_major(n * local_ranks + rail, p), layout.pieces[p].shard,
           NodePlan::kOwn);
    }
    const std::vector<layout::NodeRound> rounds = layout::node_rounds(schedule, nodes, n);
    for (size_t r = 0; r < rounds.size(); ++r) {
      PlannedSend send{.round = static_cast<int>(r), .peer = rounds[r].send_to, .ranges = {}};
      for (const layout::NodeRange& range :
           layout::node_ranges(layout, nodes, local_ranks, n, rail, rounds, r)) {
        send.ranges.push_back({.local = range.offset,
                               .remote = range.offset,
                               .bytes = range.bytes,
                               .after = range.after});
      }
      node.sends.push_back(std::move(send));
    }
  }
  announce(plan);
  return plan;
}

std::vector<ExchangePlan> reduce_scatter_plans(const layout::ReduceLayout& layout, int nodes,
                                               int local_ranks, int rail, int first) {
  constexpr uint64_t kElement = sizeof(float);
  const layout::ReduceGrid grid = layout::reduce_grid(layout, nodes, local_ranks);
  std::vector<ExchangePlan> plans(static_cast<size_t>(grid.batches));
  for (int batch = 0; batch < grid.batches; ++batch) {
    ExchangePlan& plan = plans[static_cast<size_t>(batch)];
    plan.nodes.resize(static_cast<size_t>(nodes));
    if (batch >= layout::ReduceGrid::sets) plan.after = first + batch - layout::ReduceGrid::sets;
    for (int n = 0; n < nodes; ++n) {
      NodePlan& node = plan.nodes[static_cast<size_t>(n)];
      node.arrival.assign(grid.set_elements() * kElement, NodePlan::kNone);
      // A partial for each step of the batch, side by side.
      for (const layout::LevelTwoSend& send : layout::level_two_sends(grid, n, rail)) {
        if (send.batch != batch || send.c == 0) continue;
        node.sends.push_back({.round = send.c - 1,
                              .peer = send.destination,
                              .ranges = {{.local = node.source_bytes,
                                          .remote = send.offset * kElement,
                                          .bytes = send.elements * kElement}}});
        node.source_bytes += send.elements * kElement;
      }
    }
    announce(plan);
  }
  return plans;
}

}  // namespace tide::sim
