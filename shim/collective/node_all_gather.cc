#include "shim/collective/node_all_gather.h"

#include <cstring>
#include <utility>
#include <vector>

namespace tide::collective {
namespace {

using layout::GatherLayout;
using layout::NodeRound;

// Where the shards, of this rail, of the given nodes lie in every slot.
struct Run {
  uint64_t at = 0;
  uint64_t bytes = 0;
};
std::vector<Run> runs_of(const NodeTeam& ranks, const GatherLayout& layout,
                         const layout::NodeShards& shards) {
  std::vector<Run> runs;
  for (int i = 0; i < shards.count; ++i) {
    const int node = (shards.first + i * shards.stride) % ranks.nodes();
    const int owner = node * ranks.local_ranks() + ranks.local_rank();
    for (size_t p = 0; p < layout.pieces.size(); ++p) {
      if (layout.pieces[p].shard == 0) continue;
      runs.push_back({layout.parameter_major(owner, p), layout.pieces[p].shard});
    }
  }
  return runs;
}

void gather(NodeTeam& ranks, const GatherLayout& layout, std::span<const void* const> shards,
            const device::Slot& slot, layout::Schedule schedule, const Call& call) {
  Rail& rail = ranks.rail();
  // The plan: in which round which node-shards travel where.
  const std::vector<NodeRound> rounds = layout::node_rounds(schedule, ranks.nodes(), ranks.node());

  // The own shards, at their places: from there they travel. What the rail reads and writes is the
  // slot, or its mirror in host memory.
  device::Stage* const stage = ranks.stage();
  const std::span<std::byte> reached =
      stage != nullptr ? stage->host(slot.bytes) : std::span(slot.data, slot.bytes);
  for (size_t p = 0; p < layout.pieces.size(); ++p) {
    if (layout.pieces[p].shard == 0) continue;
    std::byte* place = reached.data() + layout.parameter_major(ranks.rank(), p);
    if (stage != nullptr) {
      stage->copy(place, shards[p], layout.pieces[p].shard);
    } else {
      std::memcpy(place, shards[p], layout.pieces[p].shard);
    }
  }
  if (stage != nullptr) stage->finish();

  // The moves between nodes: handed to the rail at once, which sends on what it receives.
  tide_rail_memory memory = rail.memory(reached.data(), reached.size());
  memory.bytes = slot.bytes;
  const uint64_t exchange = rail.begin(&memory, call.what, call.timeout);
  for (size_t round = 0; round < rounds.size(); ++round) {
    rail.expect(exchange, rounds[round].receive_from, round);
  }
  std::vector<tide_rail_range> ranges;
  for (size_t round = 0; round < rounds.size(); ++round) {
    ranges.clear();
    for (const layout::NodeRange& range :
         layout::node_ranges(layout, ranks.nodes(), ranks.local_ranks(), ranks.node(),
                             ranks.local_rank(), rounds, round)) {
      ranges.push_back({.local = range.offset,
                        .remote = range.offset,
                        .bytes = range.bytes,
                        .after = range.after});
    }
    rail.send(exchange, rounds[round].send_to, round, memory, ranges);
  }
  rail.end(exchange);

  // The moves inside the node: own shards, then what each round brings.
  std::vector<std::shared_ptr<device::Pending>> pending;
  auto push = [&](std::vector<device::Push> pushes) {
    device::Exchange inside;
    inside.what = call.what;
    inside.landing = slot;
    inside.pushes = std::move(pushes);
    inside.timeout = call.timeout;
    pending.push_back(ranks.team().start(std::move(inside)));
  };
  std::vector<device::Push> pushes;
  for (int step = 0; step < ranks.local_ranks(); ++step) {
    const int peer = (ranks.local_rank() + step) % ranks.local_ranks();
    if (step == 0 && stage == nullptr) continue;  // they are there
    for (size_t p = 0; p < layout.pieces.size(); ++p) {
      if (layout.pieces[p].shard == 0) continue;
      pushes.push_back({.peer = peer,
                        .from = shards[p],
                        .to = layout.parameter_major(ranks.rank(), p),
                        .bytes = layout.pieces[p].shard});
    }
  }
  push(std::move(pushes));
  // Behind this exchange no former reader of the slot is left, and it may be written from here.
  if (stage != nullptr) pending.front()->wait();
  for (size_t round = 0; round < rounds.size(); ++round) {
    rail.wait_landed(exchange, rounds[round].receive_from, round);
    const std::vector<Run> arrived = runs_of(ranks, layout, rounds[round].receives);
    pushes.clear();
    for (const Run& run : arrived) {
      if (stage != nullptr) stage->copy(slot.data + run.at, reached.data() + run.at, run.bytes);
    }
    for (int step = 1; step < ranks.local_ranks(); ++step) {
      const int peer = (ranks.local_rank() + step) % ranks.local_ranks();
      for (const Run& run : arrived) {
        pushes.push_back(
            {.peer = peer, .from = slot.data + run.at, .to = run.at, .bytes = run.bytes});
      }
    }
    push(std::move(pushes));
  }

  // The completion: all node-mates' pushes are here, and nobody reads this slot any more.
  for (const auto& inside : pending) inside->wait();
  rail.wait(exchange);
  if (stage != nullptr) {
    stage->finish();
    for (const auto& inside : pending) inside->wait();  // now they know whether all went well
  }
}

}  // namespace

std::shared_ptr<device::Pending> all_gather(NodeTeam& ranks, const GatherLayout& layout,
                                            std::span<const void* const> shards,
                                            const device::Slot& slot, layout::Schedule schedule,
                                            Call call) {
  return ranks.run(std::move(call),
                   [&ranks, layout, slot, schedule,
                    shards = std::vector<const void*>(shards.begin(), shards.end())](
                       const Call& call) { gather(ranks, layout, shards, slot, schedule, call); });
}

}  // namespace tide::collective
