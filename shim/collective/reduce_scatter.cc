#include "shim/collective/reduce_scatter.h"

#include <mutex>

namespace tide::collective {
namespace {

// Gives the landing slot back once nothing can arrive in it any more.
class Landing : public device::Pending {
 public:
  Landing(std::shared_ptr<device::Team> team, const device::Slot& slot,
          std::shared_ptr<device::Pending> inner)
      : team_(std::move(team)), slot_(slot), inner_(std::move(inner)) {}
  ~Landing() override {
    try {
      wait();
    } catch (const std::exception&) {
      // A failed team does not use its slots again; the error has been or will be seen by wait().
    }
  }
  void wait() override {
    inner_->wait();
    std::call_once(released_, [this] { team_->release(slot_); });
  }
  bool done() const override { return inner_->done(); }
  std::string error() const override { return inner_->error(); }
  std::chrono::steady_clock::time_point finished() const override { return inner_->finished(); }

 private:
  std::shared_ptr<device::Team> team_;
  device::Slot slot_;
  std::shared_ptr<device::Pending> inner_;
  std::once_flag released_;
};

}  // namespace

std::shared_ptr<device::Pending> reduce_scatter(std::shared_ptr<device::Team> team,
                                                const layout::ReduceLayout& layout,
                                                const ReduceArguments& arguments, Call call) {
  const uint64_t size = device::size_of(arguments.in);
  const uint64_t place = layout::align_up(layout.out * size);
  auto address = [&](const layout::ReduceRun& run) {
    return static_cast<const std::byte*>(arguments.gradients[run.piece]) + run.from * size;
  };

  // The moves: rank `owner` finds the rows of rank `me` in place `me` of its landing slot, laid out
  // as its output is.
  device::Exchange exchange;
  const int me = team->rank();
  for (int step = 1; step < team->size(); ++step) {
    const int owner = (me + step) % team->size();
    for (const layout::ReduceRun& run : layout::reduce_runs(layout, owner)) {
      exchange.pushes.push_back({.peer = owner,
                                 .from = address(run),
                                 .to = me * place + run.out * size,
                                 .bytes = run.count * size});
    }
  }

  // The sum: own rows where autograd left them, the others' from their places.
  exchange.sum.in = arguments.in;
  exchange.sum.out = arguments.out;
  exchange.sum.output = arguments.output;
  exchange.sum.place_bytes = place;
  exchange.sum.factor = arguments.factor;
  exchange.sum.reduce_scatter = true;
  for (const layout::ReduceRun& run : layout::reduce_runs(layout, me)) {
    exchange.sum.runs.push_back(
        {.out = run.out, .count = run.count, .own = address(run), .landing = run.out * size});
  }
  exchange.sum.zeros = layout::reduce_padding(layout, me);

  // The completion: all rows landed and summed.
  exchange.what = std::move(call.what);
  exchange.landing = team->acquire(place * team->size());
  exchange.timeout = call.timeout;
  exchange.keep = std::move(call.keep);
  const device::Slot landing = exchange.landing;
  try {
    return std::make_shared<Landing>(team, landing, team->start(std::move(exchange)));
  } catch (const std::exception&) {
    team->release(landing);
    throw;
  }
}

}  // namespace tide::collective
