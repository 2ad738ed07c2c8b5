#include "shim/torch/observe.h"

#include <mutex>
#include <optional>

#include "shim/torch/accelerator.h"

namespace tide::shim {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct State {
  std::mutex mutex;
  Observed costs;
  PhaseCosts at_step_begin;  // costs.phases as they were then
  std::optional<int> first_group;
  Clock::time_point step_begin;
};

State& state() {
  static auto& instance = *new State;
  return instance;
}

}  // namespace

Timed::Timed(const Config& config, Phase phase, uint64_t bytes, at::Device device)
    : on_(config.mode == Mode::kObserve), phase_(phase), bytes_(bytes), device_(device) {
  if (on_) drain_current_stream(device_);
  begin_ = Clock::now();
}

Timed::~Timed() {
  if (!on_) return;
  drain_current_stream(device_);
  add_cost(phase_, bytes_, seconds_since(begin_));
}

void add_cost(Phase phase, uint64_t bytes, double seconds) {
  State& all = state();
  std::lock_guard lock(all.mutex);
  PhaseCost& cost = all.costs.phases[static_cast<size_t>(phase)];
  cost.calls += 1;
  cost.bytes += bytes;
  cost.seconds += seconds;
}

void count_step(int group_index) {
  State& all = state();
  std::lock_guard lock(all.mutex);
  if (!all.first_group) {
    all.first_group = group_index;
  } else if (*all.first_group == group_index) {
    all.costs.steps += 1;
    all.costs.step_seconds += seconds_since(all.step_begin);
    for (size_t i = 0; i < kPhaseNames.size(); ++i) {
      const PhaseCost& now = all.costs.phases[i];
      const PhaseCost& before = all.at_step_begin[i];
      PhaseCost& sum = all.costs.in_steps[i];
      sum.calls += now.calls - before.calls;
      sum.bytes += now.bytes - before.bytes;
      sum.seconds += now.seconds - before.seconds;
    }
  } else {
    return;
  }
  all.step_begin = Clock::now();
  all.at_step_begin = all.costs.phases;
}

Observed observed() {
  State& all = state();
  std::lock_guard lock(all.mutex);
  return all.costs;
}

}  // namespace tide::shim
