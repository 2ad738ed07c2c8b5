#include "shim/collective/node_reduce_scatter.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "shim/layout/node_reduce.h"

namespace tide::collective {
namespace {

using device::DType;
using layout::ReduceGrid;
using layout::ReduceLayout;

constexpr uint64_t kFloat = 4;  // bytes of an fp32 element: partials and receive sets

// Bytes of everything that lands, and where it is. Two of what one step uses while the next one
// already fills.
struct Places {
  uint64_t landing_place;  // level 1: one node-mate's part of a partial
  uint64_t landing;
  uint64_t partial;
  uint64_t set;
  uint64_t block;  // final sum: one source's part of the output
  uint64_t blocks;
  uint64_t rail;       // both partials and the sets, in one slot
  uint64_t total = 0;  // fp32 while batches follow each other, when the output is not

  Places(const ReduceGrid& grid, DType in, DType out)
      : landing_place(layout::align_up(grid.place * device::size_of(in))),
        landing(landing_place * grid.local_ranks),
        partial(layout::align_up(grid.place * kFloat)),
        set(layout::align_up(grid.set_elements() * kFloat)),
        block(layout::align_up(grid.out * kFloat)),
        blocks(block * std::min(grid.nodes, grid.local_ranks)),
        rail(2 * partial + grid.sets * set) {
    if (grid.batches > 1 && out != DType::kFloat32) total = layout::align_up(grid.out * kFloat);
  }
  uint64_t partial_at(int c) const { return (c % 2) * partial; }
  uint64_t set_at(int index) const { return 2 * partial + index * set; }
  uint64_t all() const { return 2 * landing + blocks + rail + total; }
};

// One reduce-scatter of one rank.
class Reduction : public NodeCollective {
 public:
  Reduction(NodeTeam& ranks, const ReduceLayout& layout, const ReduceArguments& arguments)
      : ranks_(ranks),
        layout_(layout),
        gradients_(arguments.gradients.begin(), arguments.gradients.end()),
        arguments_(arguments),
        grid_(layout::reduce_grid(layout, ranks.nodes(), ranks.local_ranks())),
        places_(grid_, arguments.in, arguments.out),
        sends_(layout::level_two_sends(grid_, ranks.node(), ranks.local_rank())),
        exchanges_(grid_.batches) {
    arguments_.gradients = gradients_;
    for (int k = 0; k < grid_.local_ranks; ++k) reads_.push_back(layout::final_reads(grid_, k));
  }

  int gates() const override { return set_free(grid_.batches) + grid_.nodes * kGatesOfStep; }

  void move(const Call& call) override {
    device::Stage* const stage = ranks_.stage();
    slots_.emplace(ranks_.team(), places_);
    reached_ = stage != nullptr ? stage->host(places_.rail)
                                : std::span(slots_->rail->data, slots_->rail->bytes);
    // A step's sum runs while the partial before it is handed to the rail.
    std::shared_ptr<device::Pending> summing;
    for (int c = 0; c < grid_.nodes; ++c) {
      if (c % grid_.local_ranks == 0) free_set(call, grid_.batch(c));
      if (c >= 3) await_sent(c - 2);
      auto next = level_one(call, c);
      if (summing) hand_over(c - 1, *summing);
      summing = std::move(next);
    }
    hand_over(grid_.nodes - 1, *summing);
    for (int batch = std::max(0, grid_.batches - 2); batch < grid_.batches; ++batch) {
      add(call, batch);
    }
    if (stage == nullptr) wait_for_rail();
    slots_.reset();
  }

  void carry(const Call& call, device::Gates& gates) override {
    for (int batch = 0; batch < grid_.batches; ++batch) {
      // The first two sets are free: the turn before is over.
      if (batch >= 2) ranks_.await(gates, set_free(batch));
      open(call, batch, &gates);
      for (int c = batch * grid_.local_ranks; c <= last_of(batch); ++c) send(c, &gates);
      ranks_.rail().end(exchanges_[batch]);
    }
    wait_for_rail();
  }

 private:
  struct Slots {
    ScopedSlot landings[2];
    ScopedSlot blocks;
    ScopedSlot rail;  // two partials, then the receive sets
    std::optional<ScopedSlot> total;

    Slots(device::Team& team, const Places& places)
        : landings{{team, places.landing}, {team, places.landing}},
          blocks(team, places.blocks),
          rail(team, places.rail) {
      if (places.total > 0) total.emplace(team, places.total);
    }
  };

  // With a stage: the gates of a step, and the one of a batch.
  enum GateOfStep { kSummed, kSent, kLanded, kGatesOfStep };
  int gate(int c, GateOfStep which) const {
    return set_free(grid_.batches) + c * kGatesOfStep + which;
  }
  static int set_free(int batch) { return batch; }

  std::byte* at_rail(uint64_t offset) const { return slots_->rail->data + offset; }
  // `bytes` bytes from `offset` on, of what the rail reads and writes.
  tide_rail_memory reached(uint64_t offset, uint64_t bytes) const {
    tide_rail_memory memory = ranks_.rail().memory(reached_.data(), reached_.size());
    memory.offset += offset;
    memory.bytes = bytes;
    return memory;
  }
  int last_of(int batch) const {
    return std::min((batch + 1) * grid_.local_ranks, grid_.nodes) - 1;
  }

  // ---- the rail

  // The set of this batch is free: its sources may send.
  void open(const Call& call, int batch, device::Gates* gates) {
    Rail& rail = ranks_.rail();
    const tide_rail_memory set = reached(places_.set_at(batch % grid_.sets), places_.set);
    exchanges_[batch] = rail.begin(&set, call.what, call.timeout);
    for (int c = std::max(1, batch * grid_.local_ranks); c <= last_of(batch); ++c) {
      rail.expect(exchanges_[batch], grid_.source(ranks_.node(), c), c, flag(gates, c, kLanded));
    }
  }

  // The partial of step c goes on its way, with gates once it is summed. That of c = 0 stays.
  void send(int c, device::Gates* gates) {
    if (c == 0) return;
    const layout::LevelTwoSend& send = sends_[c];
    const tide_rail_memory partial = reached(places_.partial_at(c), places_.partial);
    const tide_rail_range range{
        .local = 0, .remote = send.offset * kFloat, .bytes = send.elements * kFloat, .after = -1};
    ranks_.rail().send(exchanges_[grid_.batch(c)], send.destination, c, partial, {&range, 1},
                       flag(gates, c, kSummed), flag(gates, c, kSent));
  }

  tide_rail_flag flag(device::Gates* gates, int c, GateOfStep which) const {
    return gates != nullptr ? tide_rail_flag{gates->word(gate(c, which)), 1} : tide_rail_flag{};
  }

  void wait_for_rail() {
    for (const uint64_t exchange : exchanges_) ranks_.rail().wait(exchange);
  }

  // ---- inside the node, and where the rail comes in

  // Once the batch before the last has been added, its set is free.
  void free_set(const Call& call, int batch) {
    if (batch >= 2) add(call, batch - 2);
    if (ranks_.stage() == nullptr) {
      open(call, batch, nullptr);
    } else if (batch >= 2) {
      ranks_.stage()->open(set_free(batch));
    }
  }

  // The partial of step c, which is about to be written again, is no longer needed.
  void await_sent(int c) {
    if (ranks_.stage() != nullptr) {
      ranks_.stage()->await(gate(c, kSent));
    } else {
      ranks_.rail().wait_sent(exchanges_[grid_.batch(c)], sends_[c].destination, c);
    }
  }

  // Where the partial of step c is added up: what stays on this node right in its receive set.
  std::byte* partial_of(int c) const {
    if (c > 0) return at_rail(places_.partial_at(c));
    const layout::LevelTwoSend& own = sends_[0];
    return at_rail(places_.set_at(own.set) + own.offset * kFloat);
  }

  std::shared_ptr<device::Pending> level_one(const Call& call, int c) {
    const layout::LevelOneStep step =
        layout::level_one_step(layout_, grid_, ranks_.node(), ranks_.local_rank(), c);
    const uint64_t size = device::size_of(arguments_.in);
    auto address = [&](const layout::PartialRun& run) {
      return static_cast<const std::byte*>(arguments_.gradients[run.piece]) + run.from * size;
    };
    device::Exchange exchange = exchange_of(call, *slots_->landings[c % 2]);
    for (const layout::LevelOnePush& push : step.pushes) {
      for (const layout::PartialRun& run : push.runs) {
        exchange.pushes.push_back(
            {.peer = push.peer,
             .from = address(run),
             .to = ranks_.local_rank() * places_.landing_place + run.at * size,
             .bytes = run.count * size});
      }
    }
    exchange.sum.in = arguments_.in;
    exchange.sum.out = DType::kFloat32;
    exchange.sum.output = partial_of(c);
    exchange.sum.place_bytes = places_.landing_place;
    for (const layout::PartialRun& run : step.sum.runs) {
      exchange.sum.runs.push_back(
          {.out = run.at, .count = run.count, .own = address(run), .landing = run.at * size});
    }
    exchange.sum.zeros = step.sum.zeros;
    return ranks_.team().start(std::move(exchange));
  }

  // The partial of step c is summed: to the rail with it.
  void hand_over(int c, device::Pending& summing) {
    summing.wait();
    if (device::Stage* const stage = ranks_.stage()) {
      if (c == 0) return;
      const uint64_t at = places_.partial_at(c);
      stage->copy(reached_.data() + at, at_rail(at), sends_[c].elements * kFloat);
      stage->open(gate(c, kSummed));
      return;
    }
    send(c, nullptr);
    if (c == last_of(grid_.batch(c))) ranks_.rail().end(exchanges_[grid_.batch(c)]);
  }

  void await_landed(int c) {
    if (ranks_.stage() != nullptr) {
      ranks_.stage()->await(gate(c, kLanded));
    } else {
      ranks_.rail().wait_landed(exchanges_[grid_.batch(c)], grid_.source(ranks_.node(), c), c);
    }
  }

  // Every rank hands its node-mates their blocks of the partials that came to it, and adds what it
  // gets in the order of c.
  void add(const Call& call, int batch) {
    const int first = batch * grid_.local_ranks;
    for (int c = std::max(1, first); c <= last_of(batch); ++c) await_landed(c);
    device::Exchange exchange = exchange_of(call, *slots_->blocks);
    for (int step = 0; step < grid_.local_ranks; ++step) {
      const int peer = (ranks_.local_rank() + step) % grid_.local_ranks;
      for (const layout::FinalRead& read : reads_[peer]) {
        if (read.batch != batch || read.from != ranks_.local_rank()) continue;
        const uint64_t at = places_.set_at(read.set) + read.offset * kFloat;
        // Partials of c = 0 were added up in place.
        if (ranks_.stage() != nullptr && read.c > 0)
          ranks_.stage()->copy(at_rail(at), reached_.data() + at, read.count * kFloat);
        exchange.pushes.push_back({.peer = peer,
                                   .from = at_rail(at),
                                   .to = (read.c - first) * places_.block + read.out * kFloat,
                                   .bytes = read.count * kFloat});
      }
    }
    const bool last = batch + 1 == grid_.batches;
    void* total = slots_->total ? static_cast<void*>((*slots_->total)->data) : arguments_.output;
    exchange.sum.in = DType::kFloat32;
    exchange.sum.out = last ? arguments_.out : DType::kFloat32;
    exchange.sum.output = last ? arguments_.output : total;
    exchange.sum.place_bytes = places_.block;
    exchange.sum.factor = last ? arguments_.factor : 1.0f;
    exchange.sum.sources = last_of(batch) - first + 1;
    exchange.sum.runs = {
        {.out = 0, .count = grid_.out, .own = batch > 0 ? total : nullptr, .landing = 0}};
    ranks_.team().start(std::move(exchange))->wait();
  }

  static device::Exchange exchange_of(const Call& call, const device::Slot& landing) {
    device::Exchange exchange;
    exchange.what = call.what;
    exchange.timeout = call.timeout;
    exchange.keep = call.keep;
    exchange.landing = landing;
    return exchange;
  }

  NodeTeam& ranks_;
  const ReduceLayout layout_;
  const std::vector<const void*> gradients_;
  ReduceArguments arguments_;
  const ReduceGrid grid_;
  const Places places_;
  const std::vector<layout::LevelTwoSend> sends_;      // by c
  std::vector<std::vector<layout::FinalRead>> reads_;  // by local rank
  std::vector<uint64_t> exchanges_;                    // of the rail, by batch
  std::optional<Slots> slots_;                         // while the moves are made or enqueued
  std::span<std::byte> reached_;                       // the rail's slot, or its mirror
};

}  // namespace

std::shared_ptr<device::Pending> reduce_scatter(NodeTeam& ranks, const ReduceLayout& layout,
                                                const ReduceArguments& arguments, Call call) {
  return ranks.run(std::move(call), std::make_shared<Reduction>(ranks, layout, arguments));
}

uint64_t reduce_memory(const ReduceLayout& layout, int nodes, int local_ranks, DType in,
                       DType out) {
  return Places(layout::reduce_grid(layout, nodes, local_ranks), in, out).all();
}

}  // namespace tide::collective
