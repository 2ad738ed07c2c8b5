// What stock FSDP2 pays, measured in TIDE_SHIM=observe: bytes and seconds of each phase.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "shim/torch/config.h"

namespace tide::shim {

enum class Phase { kCast, kCopyIn, kAllGather, kCopyOut, kGradientPack, kReduceScatter };
inline constexpr std::array<const char*, 6> kPhaseNames = {
    "casts", "copy_in", "all_gather", "copy_out", "gradient_pack", "reduce_scatter"};

struct PhaseCost {
  uint64_t calls = 0;
  uint64_t bytes = 0;  // written
  double seconds = 0;
};

void add_cost(Phase phase, uint64_t bytes, double seconds);

// Adds the time from its construction to its destruction; nothing unless observing. On a GPU the
// current stream is drained before and after, so that the time is the phase's own.
class Timed {
 public:
  Timed(const Config& config, Phase phase, uint64_t bytes, at::Device device);
  ~Timed();
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  bool on_;
  Phase phase_;
  uint64_t bytes_;
  at::Device device_;
  std::chrono::steady_clock::time_point begin_;
};

// A step of training ends when the group whose gradients were reduced first is reduced again.
void count_step(int group_index);

// Hooks the casts around the collectives, and says which copies were such casts: the one that wrote
// the inputs of a copy-in, and the one that reads the output of a reduce-scatter.
void register_observe_hooks();
void note_gathered(const std::vector<at::Tensor>& inputs);
void note_reduced(const at::Tensor& output);

using PhaseCosts = std::array<PhaseCost, kPhaseNames.size()>;

struct Observed {
  PhaseCosts phases;        // of the whole run
  PhaseCosts in_steps;      // of its whole steps
  uint64_t steps = 0;       // whole ones
  double step_seconds = 0;  // of all of them
};
Observed observed();

}  // namespace tide::shim
