// What the nodes of a simulated rail exchange: real schedules over real layouts, as transfers.
#pragma once

#include <cstdint>
#include <vector>

#include "plugin/pacing/rounds.h"
#include "shim/layout/node_reduce.h"
#include "shim/layout/node_schedule.h"

namespace tide::sim {

struct PlannedSend {
  int round = 0;
  int peer = 0;
  uint64_t bytes = 0;
  std::vector<pacing::Range> ranges;
};

struct PlannedReceive {
  int round = 0;
  int peer = 0;
};

// One node's part of one exchange.
struct NodePlan {
  static constexpr int16_t kOwn = -1;   // this node's from the start
  static constexpr int16_t kNone = -2;  // nothing is there

  std::vector<PlannedSend> sends;
  std::vector<PlannedReceive> receives;
  std::vector<int16_t> arrival;  // by byte of the landing memory: the round that brings it
  // Of a source of its own, all of it ready when it is sent; 0: the landing memory is the source.
  uint64_t source_bytes = 0;
};

struct ExchangePlan {
  std::vector<NodePlan> nodes;
  int after = -1;  // the exchange that must be done here before this one begins
};

// An all-gather on one rail: a parameter-major slot, forwarded as the schedule says. places: also
// NodePlan::arrival, two bytes for each of the slot.
ExchangePlan all_gather_plan(layout::Schedule schedule, const layout::GatherLayout& layout,
                             int nodes, int local_ranks, int rail, bool places = true);

// A reduce-scatter on one rail: an exchange per batch, since a batch needs its receive set free.
// `first` is the number of the first one among all exchanges.
std::vector<ExchangePlan> reduce_scatter_plans(const layout::ReduceLayout& layout, int nodes,
                                               int local_ranks, int rail, int first);

}  // namespace tide::sim
