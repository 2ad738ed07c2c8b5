#include "shim/collective/node_all_gather.h"

#include <cstring>
#include <utility>
#include <vector>

namespace tide::collective {
namespace {

using layout::GatherLayout;
using layout::NodeRound;

// Pushes from the own slot to the same place of the node-mates' slots: the shards, of this rail, of
// the given nodes.
std::vector<device::Push> pushes_of(const NodeTeam& ranks, const GatherLayout& layout,
                                    const device::Slot& slot, const layout::NodeShards& shards) {
  std::vector<device::Push> pushes;
  for (int step = 1; step < ranks.local_ranks(); ++step) {
    const int peer = (ranks.local_rank() + step) % ranks.local_ranks();
    for (int i = 0; i < shards.count; ++i) {
      const int node = (shards.first + i * shards.stride) % ranks.nodes();
      const int owner = node * ranks.local_ranks() + ranks.local_rank();
      for (size_t p = 0; p < layout.pieces.size(); ++p) {
        if (layout.pieces[p].shard == 0) continue;
        const uint64_t at = layout.parameter_major(owner, p);
        pushes.push_back(
            {.peer = peer, .from = slot.data + at, .to = at, .bytes = layout.pieces[p].shard});
      }
    }
  }
  return pushes;
}

void gather(NodeTeam& ranks, const GatherLayout& layout, std::span<const void* const> shards,
            const device::Slot& slot, layout::Schedule schedule, const Call& call) {
  Rail& rail = ranks.rail();
  // The plan: in which round which node-shards travel where.
  const std::vector<NodeRound> rounds = layout::node_rounds(schedule, ranks.nodes(), ranks.node());

  // The own shards, at their places: from there they travel.
  for (size_t p = 0; p < layout.pieces.size(); ++p) {
    if (layout.pieces[p].shard == 0) continue;
    std::memcpy(slot.data + layout.parameter_major(ranks.rank(), p), shards[p],
                layout.pieces[p].shard);
  }

  // The moves between nodes: handed to the rail at once, which sends on what it receives.
  const tide_rail_memory memory = rail.memory(slot.data, slot.bytes);
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
  auto push_on = [&](const layout::NodeShards& what) {
    device::Exchange inside;
    inside.what = call.what;
    inside.landing = slot;
    inside.pushes = pushes_of(ranks, layout, slot, what);
    inside.timeout = call.timeout;
    pending.push_back(ranks.team().start(std::move(inside)));
  };
  push_on({.first = ranks.node(), .stride = 1, .count = 1});
  for (size_t round = 0; round < rounds.size(); ++round) {
    rail.wait_landed(exchange, rounds[round].receive_from, round);
    push_on(rounds[round].receives);
  }

  // The completion: all node-mates' pushes are here, and nobody reads this slot any more.
  for (const auto& inside : pending) inside->wait();
  rail.wait(exchange);
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
