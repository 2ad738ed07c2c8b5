// The FSDP parameter groups of this process: what is known of each, the plan of each shape its
// collectives take, and what was counted.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shim/collective/agreement.h"
#include "shim/device/device.h"
#include "shim/layout/parameter_major.h"
#include "shim/torch/python.h"

namespace tide::shim {

enum class PlanState {
  kRecording,  // seen, runs stock once more: the sequence of calls must prove itself first
  kActive,     // Tide carries it
  kStock,      // Tide does not; `reason` says why
};

// A collective of a group in one shape. A group has few: sharded, sharded post forward, and one per
// set of parameters that had gradients.
struct Plan {
  PlanState state = PlanState::kRecording;
  // Once it is judged: the way its collectives go, and why not by layout.
  collective::Tier tier = collective::Tier::kStock;
  std::string reason;
  uint64_t calls = 0;  // collectives that ended, stock included
  void refuse(const std::string& why) {
    state = PlanState::kStock;
    take(collective::Tier::kStock, why);
  }
  void take(collective::Tier way, const std::string& why) {
    tier = way;
    reason = why;
  }
};

struct GatherShape {
  std::vector<int64_t> shards;  // elements of one rank's shard of each parameter
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  int world = 0;
  bool operator==(const GatherShape&) const = default;
};

struct GatherPlan : Plan {
  GatherShape shape;
  layout::GatherLayout layout;
};

struct ReduceShape {
  std::vector<std::pair<int64_t, int64_t>> gradients;  // rows, elements of a row
  at::ScalarType in = at::kFloat;
  at::ScalarType out = at::kFloat;
  at::Device device = at::kCPU;
  int world = 0;
  bool operator==(const ReduceShape&) const = default;
};

struct ReducePlan : Plan {
  ReduceShape shape;
  layout::ReduceLayout layout;
};

struct Counters {
  uint64_t all_gathers = 0;  // all, stock included
  uint64_t all_gathers_stock = 0;
  uint64_t reduce_scatters = 0;
  uint64_t reduce_scatters_stock = 0;
  uint64_t copy_bytes = 0;          // written by FSDP2's layout copies that ran
  uint64_t copy_bytes_avoided = 0;  // that did not run
  // Reduce-scatters by where Tide held the gradients, and what it copied into slots.
  uint64_t gradients_in_slot = 0;
  uint64_t gradients_in_place = 0;
  uint64_t gradient_copy_bytes = 0;
};

struct Group {
  int index = 0;
  GroupFacts facts;
  std::string label;   // "layers.3 (group 4)"
  uint64_t bytes = 0;  // of its gathered parameters
  Counters counters;
  // Collectives that Tide prepared so far: the number of the last one.
  uint64_t gather_sequence = 0;
  uint64_t reduce_sequence = 0;
  std::weak_ptr<device::Team> landing;  // whose slots its last all-gather landed in
  std::vector<std::shared_ptr<GatherPlan>> gathers;
  std::vector<std::shared_ptr<ReducePlan>> reduces;
};

// Process-wide; hooks may come from the main and from the autograd threads at once. Everything in a
// Group is read and written under `mutex`.
struct Groups {
  std::mutex mutex;
  std::vector<std::shared_ptr<Group>> list;  // by Caller::group

  // The group that calls; made when it calls for the first time.
  std::shared_ptr<Group> find(const Caller& caller);
};
Groups& groups();

// The plan of a shape; `created` when this call made it.
template <typename P, typename Shape>
std::shared_ptr<P> plan_for(std::vector<std::shared_ptr<P>>& plans, const Shape& shape,
                            bool& created) {
  for (const auto& plan : plans)
    if (plan->shape == shape) return plan;
  created = true;
  plans.push_back(std::make_shared<P>());
  plans.back()->shape = shape;
  return plans.back();
}

}  // namespace tide::shim
