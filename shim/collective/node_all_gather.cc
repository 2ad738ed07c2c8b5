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

// One all-gather of one rank.
class Gathering : public NodeCollective {
 public:
  Gathering(NodeTeam& ranks, const GatherLayout& layout, std::span<const void* const> shards,
            const device::Slot& slot, layout::Schedule schedule)
      : ranks_(ranks),
        layout_(layout),
        shards_(shards.begin(), shards.end()),
        slot_(slot),
        rounds_(layout::node_rounds(schedule, ranks.nodes(), ranks.node())) {}

  // The own shards are in the mirror; the landing of each round.
  int gates() const override { return kLanded + static_cast<int>(rounds_.size()); }

  void move(const Call& call) override {
    device::Stage* const stage = ranks_.stage();
    // What the rail reads and writes is the slot, or its mirror in host memory. There the own
    // shards begin their way.
    reached_ = stage != nullptr ? stage->host(slot_.bytes) : std::span(slot_.data, slot_.bytes);
    for (size_t p = 0; p < layout_.pieces.size(); ++p) {
      if (layout_.pieces[p].shard == 0) continue;
      std::byte* place = reached_.data() + layout_.parameter_major(ranks_.rank(), p);
      if (stage != nullptr) {
        stage->copy(place, shards_[p], layout_.pieces[p].shard);
      } else {
        std::memcpy(place, shards_[p], layout_.pieces[p].shard);
      }
    }
    uint64_t exchange = 0;
    if (stage != nullptr) {
      stage->open(kShards);
    } else {
      exchange = hand_over(call, nullptr);
    }

    // The moves inside the node: own shards, then what each round brings.
    std::vector<std::shared_ptr<device::Pending>> pending{push(call, own_shards())};
    // Behind this exchange no former reader of the slot is left, and it may be written from here.
    if (stage != nullptr) pending.front()->wait();
    for (size_t round = 0; round < rounds_.size(); ++round) {
      if (stage != nullptr) {
        stage->await(kLanded + static_cast<int>(round));
      } else {
        ranks_.rail().wait_landed(exchange, rounds_[round].receive_from, round);
      }
      const std::vector<Run> arrived = runs_of(ranks_, layout_, rounds_[round].receives);
      for (const Run& run : arrived) {
        if (stage != nullptr) stage->copy(slot_.data + run.at, reached_.data() + run.at, run.bytes);
      }
      pending.push_back(push(call, onward(arrived)));
    }

    // The completion: all node-mates' pushes are here, and nobody reads this slot any more.
    for (const auto& inside : pending) inside->wait();
    if (stage == nullptr) ranks_.rail().wait(exchange);
  }

  void carry(const Call& call, device::Gates& gates) override {
    ranks_.rail().wait(hand_over(call, &gates));
  }

 private:
  enum Gate { kShards, kLanded };

  // The moves between nodes, all at once: the rail itself sends on what it receives. Their number
  // as an exchange.
  uint64_t hand_over(const Call& call, device::Gates* gates) {
    auto flag = [&](int gate) {
      return gates != nullptr ? tide_rail_flag{gates->word(gate), 1} : tide_rail_flag{};
    };
    Rail& rail = ranks_.rail();
    tide_rail_memory memory = rail.memory(reached_.data(), reached_.size());
    memory.bytes = slot_.bytes;
    const uint64_t exchange = rail.begin(&memory, call.what, call.timeout);
    for (size_t round = 0; round < rounds_.size(); ++round) {
      rail.expect(exchange, rounds_[round].receive_from, round,
                  flag(kLanded + static_cast<int>(round)));
    }
    std::vector<tide_rail_range> ranges;
    for (size_t round = 0; round < rounds_.size(); ++round) {
      ranges.clear();
      for (const layout::NodeRange& range :
           layout::node_ranges(layout_, ranks_.nodes(), ranks_.local_ranks(), ranks_.node(),
                               ranks_.local_rank(), rounds_, round)) {
        ranges.push_back({.local = range.offset,
                          .remote = range.offset,
                          .bytes = range.bytes,
                          .after = range.after});
      }
      rail.send(exchange, rounds_[round].send_to, round, memory, ranges, flag(kShards));
    }
    rail.end(exchange);
    return exchange;
  }

  std::shared_ptr<device::Pending> push(const Call& call, std::vector<device::Push> pushes) {
    device::Exchange inside;
    inside.what = call.what;
    inside.landing = slot_;
    inside.pushes = std::move(pushes);
    inside.timeout = call.timeout;
    return ranks_.team().start(std::move(inside));
  }

  std::vector<device::Push> own_shards() const {
    std::vector<device::Push> pushes;
    for (int step = 0; step < ranks_.local_ranks(); ++step) {
      if (step == 0 && ranks_.stage() == nullptr) continue;  // they are there
      const int peer = (ranks_.local_rank() + step) % ranks_.local_ranks();
      for (size_t p = 0; p < layout_.pieces.size(); ++p) {
        if (layout_.pieces[p].shard == 0) continue;
        pushes.push_back({.peer = peer,
                          .from = shards_[p],
                          .to = layout_.parameter_major(ranks_.rank(), p),
                          .bytes = layout_.pieces[p].shard});
      }
    }
    return pushes;
  }

  std::vector<device::Push> onward(const std::vector<Run>& arrived) const {
    std::vector<device::Push> pushes;
    for (int step = 1; step < ranks_.local_ranks(); ++step) {
      const int peer = (ranks_.local_rank() + step) % ranks_.local_ranks();
      for (const Run& run : arrived) {
        pushes.push_back(
            {.peer = peer, .from = slot_.data + run.at, .to = run.at, .bytes = run.bytes});
      }
    }
    return pushes;
  }

  NodeTeam& ranks_;
  const GatherLayout layout_;
  const std::vector<const void*> shards_;
  const device::Slot slot_;
  const std::vector<NodeRound> rounds_;  // the plan: which node-shards travel where, and when
  std::span<std::byte> reached_;
};

}  // namespace

std::shared_ptr<device::Pending> all_gather(NodeTeam& ranks, const GatherLayout& layout,
                                            std::span<const void* const> shards,
                                            const device::Slot& slot, layout::Schedule schedule,
                                            Call call) {
  return ranks.run(std::move(call),
                   std::make_shared<Gathering>(ranks, layout, shards, slot, schedule));
}

}  // namespace tide::collective
