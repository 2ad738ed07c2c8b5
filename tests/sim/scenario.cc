// Random scenarios. Faults are far shorter than the timeout: where nobody dies, nobody may fail.
#include <algorithm>

#include "tests/sim/simulation.h"

namespace tide::sim {
namespace {

layout::GatherLayout random_gather(Random& random, int world) {
  std::vector<uint64_t> shards(1 + random.below(3));
  for (uint64_t& shard : shards) shard = random.below(random.chance(0.2) ? 200 : 24);
  return layout::gather_layout(shards, world);
}

layout::ReduceLayout random_reduce(Random& random, int world) {
  std::vector<layout::Gradient> gradients(1 + random.below(2));
  for (layout::Gradient& gradient : gradients) {
    gradient = {.rows = random.below(static_cast<uint64_t>(world) * 3), .row = 1 + random.below(9)};
  }
  return layout::reduce_layout(gradients, world);
}

void add_exchanges(Scenario& scenario, Random& random) {
  constexpr layout::Schedule kSchedules[] = {layout::Schedule::kNearFirst,
                                             layout::Schedule::kFarFirst, layout::Schedule::kRing};
  const int local_ranks = random.between(1, 8);
  const int rail = random.between(0, local_ranks - 1);
  const int world = scenario.nodes * local_ranks;
  const int collectives = scenario.nodes > 20 ? 1 : random.between(1, 3);
  for (int i = 0; i < collectives; ++i) {
    if (random.chance(0.6)) {
      scenario.exchanges.push_back(all_gather_plan(kSchedules[random.below(3)],
                                                   random_gather(random, world), scenario.nodes,
                                                   local_ranks, rail));
      continue;
    }
    const int first = static_cast<int>(scenario.exchanges.size());
    for (ExchangePlan& plan : reduce_scatter_plans(random_reduce(random, world), scenario.nodes,
                                                   local_ranks, rail, first)) {
      scenario.exchanges.push_back(std::move(plan));
    }
  }
}

pacing::RoundSettings random_settings(Random& random, int nodes) {
  pacing::RoundSettings settings;
  const uint64_t kind = random.below(10);
  settings.pacing = kind < 7   ? pacing::Pacing::kHead
                    : kind < 9 ? pacing::Pacing::kFull
                               : pacing::Pacing::kOff;
  settings.head_bytes = 1 + random.below(random.chance(0.5) ? 40 : 400);
  settings.queue_pairs = random.chance(0.2) ? random.between(5, 16) : random.between(1, 4);
  settings.stripe_bytes = 1 + random.below(48);
  if (random.chance(0.3)) settings.write_bytes = 8 + random.below(100);
  settings.depth = random.chance(0.5) ? random.between(1, 3) : 64;
  settings.exchanges = random.between(1, 4);
  settings.rounds = std::max(1, nodes - 1);
  return settings;
}

void add_faults(Scenario& scenario, Random& random) {
  constexpr Time kMicrosecond = 1'000, kMillisecond = 1'000'000;
  const auto other = [&](int than) {
    return (than + random.between(1, scenario.nodes - 1)) % scenario.nodes;
  };
  // When things happen: about as long as the exchanges take.
  const Time span = (20 + 10 * static_cast<Time>(scenario.nodes)) * kMicrosecond;
  scenario.handling = random.below(600);
  if (random.chance(0.6)) scenario.jitter = random.below(30 * kMicrosecond);
  if (random.chance(0.3)) scenario.loss = 0.02 + 0.001 * static_cast<double>(random.below(150));
  scenario.retry = (5 + random.below(200)) * kMicrosecond;
  if (random.chance(0.4)) scenario.duplicate = 0.001 * static_cast<double>(random.below(600));
  if (random.chance(0.4)) scenario.late_begin = random.below(2 * span);
  if (random.chance(0.4)) scenario.late_send = random.below(20 * kMicrosecond);
  // One so slow that the others wait for it longer than the timeout, but never at rest for as long.
  if (random.chance(0.08)) {
    scenario.late_send = scenario.timeout / 3;
    scenario.late_node = random.between(0, scenario.nodes - 1);
  }
  // All wait, some of them for each other, longer than the timeout, but one still moves. What it
  // has posted stays on its wire even when the connection breaks: a device would drop it, so none.
  if (scenario.nodes <= 24 && random.chance(0.06)) {
    scenario.slow_node = random.between(0, scenario.nodes - 1);
    scenario.slow_write = scenario.timeout / 12;
    scenario.rounds.write_bytes = 1 + random.below(16);
  }
  if (random.chance(0.35)) {
    for (int i = random.between(1, 4); i > 0; --i) {
      const int a = random.between(0, scenario.nodes - 1);
      const Time from = random.below(span);
      scenario.outages.push_back({.a = a,
                                  .b = other(a),
                                  .from = from,
                                  .until = from + random.below(20 * kMillisecond),
                                  .breaks = scenario.slow_node < 0 && random.chance(0.6)});
    }
  }
  if (random.chance(0.25)) {
    for (int i = random.between(1, 3); i > 0; --i) {
      const Time from = random.below(span);
      scenario.stalls.push_back({.node = random.between(0, scenario.nodes - 1),
                                 .from = from,
                                 .until = from + random.below(20 * kMillisecond)});
    }
  }
  if (random.chance(0.25)) {
    scenario.dies = random.between(0, scenario.nodes - 1);
    scenario.dies_at = random.below(span);
    if (random.chance(0.5)) {
      scenario.retries_exhausted = (1 + random.below(200)) * kMillisecond;
    }
  }
}

}  // namespace

Scenario random_scenario(uint64_t seed) {
  Random random(seed);
  Scenario scenario;
  scenario.seed = seed;
  const uint64_t size = random.below(100);
  scenario.nodes = size < 70   ? random.between(2, 9)
                   : size < 95 ? random.between(10, 24)
                               : random.between(25, 64);
  add_exchanges(scenario, random);
  scenario.rounds = random_settings(random, scenario.nodes);
  add_faults(scenario, random);
  return scenario;
}

}  // namespace tide::sim
