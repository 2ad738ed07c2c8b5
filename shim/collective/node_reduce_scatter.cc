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

// One reduce-scatter of one rank, on the thread of its NodeTeam.
class Reduction {
 public:
  Reduction(NodeTeam& ranks, const ReduceLayout& layout, const ReduceArguments& arguments,
            const Call& call)
      : ranks_(ranks),
        layout_(layout),
        arguments_(arguments),
        call_(call),
        grid_(layout::reduce_grid(layout, ranks.nodes(), ranks.local_ranks())),
        places_(grid_, arguments.in, arguments.out),
        landings_{{ranks.team(), places_.landing}, {ranks.team(), places_.landing}},
        blocks_(ranks.team(), places_.blocks),
        rail_slot_(ranks.team(), places_.rail),
        reached_(ranks.stage() != nullptr ? ranks.stage()->host(places_.rail)
                                          : std::span(rail_slot_->data, rail_slot_->bytes)),
        sends_(layout::level_two_sends(grid_, ranks.node(), ranks.local_rank())) {
    if (places_.total > 0) total_.emplace(ranks.team(), places_.total);
    for (int k = 0; k < grid_.local_ranks; ++k) reads_.push_back(layout::final_reads(grid_, k));
  }

  void run() {
    // A step's sum runs while the partial before it is handed to the rail.
    std::shared_ptr<device::Pending> summing;
    for (int c = 0; c < grid_.nodes; ++c) {
      if (c % grid_.local_ranks == 0) open(grid_.batch(c));
      if (c >= 3) wait_sent(c - 2);
      auto next = level_one(c);
      if (summing) hand_over(c - 1, *summing);
      summing = std::move(next);
    }
    hand_over(grid_.nodes - 1, *summing);
    for (int batch = std::max(0, grid_.batches - 2); batch < grid_.batches; ++batch) add(batch);
    for (const uint64_t exchange : exchanges_) ranks_.rail().wait(exchange);
    if (ranks_.stage() != nullptr) {
      ranks_.stage()->finish();
      for (const auto& adding : added_) adding->wait();  // now they know whether all went well
    }
  }

 private:
  std::byte* at_rail(uint64_t offset) const { return rail_slot_->data + offset; }
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

  // The set of this batch is free, once the batch before the last has been added: sources may send.
  void open(int batch) {
    if (batch >= 2) add(batch - 2);
    Rail& rail = ranks_.rail();
    const tide_rail_memory set = reached(places_.set_at(batch % grid_.sets), places_.set);
    exchanges_.push_back(rail.begin(&set, call_.what, call_.timeout));
    for (int c = std::max(1, batch * grid_.local_ranks); c <= last_of(batch); ++c) {
      rail.expect(exchanges_.back(), grid_.source(ranks_.node(), c), c);
    }
  }

  // Where the partial of step c is added up: what stays on this node right in its receive set.
  std::byte* partial_of(int c) const {
    if (c > 0) return at_rail(places_.partial_at(c));
    const layout::LevelTwoSend& own = sends_[0];
    return at_rail(places_.set_at(own.set) + own.offset * kFloat);
  }

  std::shared_ptr<device::Pending> level_one(int c) {
    const layout::LevelOneStep step =
        layout::level_one_step(layout_, grid_, ranks_.node(), ranks_.local_rank(), c);
    const uint64_t size = device::size_of(arguments_.in);
    auto address = [&](const layout::PartialRun& run) {
      return static_cast<const std::byte*>(gradients()[run.piece]) + run.from * size;
    };
    device::Exchange exchange;
    exchange.what = call_.what;
    exchange.timeout = call_.timeout;
    exchange.keep = call_.keep;
    exchange.landing = *landings_[c % 2];
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

  // The partial of step c goes on its way.
  void hand_over(int c, device::Pending& summing) {
    summing.wait();
    const uint64_t exchange = exchanges_[grid_.batch(c)];
    Rail& rail = ranks_.rail();
    if (c > 0) {
      const layout::LevelTwoSend& send = sends_[c];
      const uint64_t at = places_.partial_at(c);
      if (device::Stage* const stage = ranks_.stage()) {
        stage->copy(reached_.data() + at, at_rail(at), send.elements * kFloat);
        stage->finish();
        summing.wait();  // now it knows whether it went well
      }
      const tide_rail_memory partial = reached(at, places_.partial);
      const tide_rail_range range{
          .local = 0, .remote = send.offset * kFloat, .bytes = send.elements * kFloat, .after = -1};
      rail.send(exchange, send.destination, c, partial, {&range, 1});
    }
    if (c == last_of(grid_.batch(c))) rail.end(exchange);
  }

  void wait_sent(int c) {
    ranks_.rail().wait_sent(exchanges_[grid_.batch(c)], sends_[c].destination, c);
  }

  // Every rank hands its node-mates their blocks of the partials that came to it, and adds what it
  // gets in the order of c.
  void add(int batch) {
    const int first = batch * grid_.local_ranks;
    for (int c = std::max(1, first); c <= last_of(batch); ++c) {
      ranks_.rail().wait_landed(exchanges_[batch], grid_.source(ranks_.node(), c), c);
    }
    if (device::Stage* const stage = ranks_.stage()) {
      for (const auto& reads : reads_) {
        for (const layout::FinalRead& read : reads) {
          // Partials of c = 0 were added up in place.
          if (read.batch != batch || read.from != ranks_.local_rank() || read.c == 0) continue;
          const uint64_t at = places_.set_at(read.set) + read.offset * kFloat;
          stage->copy(at_rail(at), reached_.data() + at, read.count * kFloat);
        }
      }
      stage->finish();  // open() hands the mirror of this set to the rail again
    }
    device::Exchange exchange;
    exchange.what = call_.what;
    exchange.timeout = call_.timeout;
    exchange.keep = call_.keep;
    exchange.landing = *blocks_;
    for (int step = 0; step < grid_.local_ranks; ++step) {
      const int peer = (ranks_.local_rank() + step) % grid_.local_ranks;
      for (const layout::FinalRead& read : reads_[peer]) {
        if (read.batch != batch || read.from != ranks_.local_rank()) continue;
        exchange.pushes.push_back({.peer = peer,
                                   .from = at_rail(places_.set_at(read.set) + read.offset * kFloat),
                                   .to = (read.c - first) * places_.block + read.out * kFloat,
                                   .bytes = read.count * kFloat});
      }
    }
    const bool last = batch + 1 == grid_.batches;
    void* total = total_ ? static_cast<void*>((*total_)->data) : arguments_.output;
    exchange.sum.in = DType::kFloat32;
    exchange.sum.out = last ? arguments_.out : DType::kFloat32;
    exchange.sum.output = last ? arguments_.output : total;
    exchange.sum.place_bytes = places_.block;
    exchange.sum.factor = last ? arguments_.factor : 1.0f;
    exchange.sum.sources = last_of(batch) - first + 1;
    exchange.sum.runs = {
        {.out = 0, .count = grid_.out, .own = batch > 0 ? total : nullptr, .landing = 0}};
    added_.push_back(ranks_.team().start(std::move(exchange)));
    added_.back()->wait();
  }

  std::span<const void* const> gradients() const { return arguments_.gradients; }

  NodeTeam& ranks_;
  const ReduceLayout& layout_;
  const ReduceArguments& arguments_;
  const Call& call_;
  const ReduceGrid grid_;
  const Places places_;
  const ScopedSlot landings_[2];
  const ScopedSlot blocks_;
  const ScopedSlot rail_slot_;          // two partials, then the receive sets
  const std::span<std::byte> reached_;  // the same memory, or its mirror, as the rail reaches it
  std::optional<ScopedSlot> total_;
  const std::vector<layout::LevelTwoSend> sends_;        // by c
  std::vector<std::vector<layout::FinalRead>> reads_;    // by local rank
  std::vector<uint64_t> exchanges_;                      // of the rail, by batch
  std::vector<std::shared_ptr<device::Pending>> added_;  // by batch
};

}  // namespace

std::shared_ptr<device::Pending> reduce_scatter(NodeTeam& ranks, const ReduceLayout& layout,
                                                const ReduceArguments& arguments, Call call) {
  std::vector<const void*> gradients(arguments.gradients.begin(), arguments.gradients.end());
  return ranks.run(std::move(call),
                   [&ranks, layout, arguments, gradients = std::move(gradients)](const Call& call) {
                     ReduceArguments own = arguments;
                     own.gradients = gradients;
                     Reduction(ranks, layout, own, call).run();
                   });
}

uint64_t reduce_memory(const ReduceLayout& layout, int nodes, int local_ranks, DType in,
                       DType out) {
  return Places(layout::reduce_grid(layout, nodes, local_ranks), in, out).all();
}

}  // namespace tide::collective
