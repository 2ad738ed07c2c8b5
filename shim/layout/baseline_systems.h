// What the systems in use would do with the same tensors: per-device elements and cut blocks.
#pragma once

#include <string>
#include <vector>

#include "tide/ragged.h"

namespace tide::ragged {

struct Baseline {
  std::string name;        // "fsdp2", "fsdp1", "zero3" or "megatron"
  int64_t shard = 0;       // elements per device
  int64_t cut_blocks = 0;  // distinct blocks that a device border cuts
};

// All four, for the tensors of `buffer` in registration order, on its devices.
std::vector<Baseline> baselines(const Buffer& buffer);

// Starts of the tensors under Megatron-FSDP's rule, in the given order, and the per-device
// elements. `chunk` is the LCM of prod(shape[1:]).
struct MegatronLayout {
  int64_t chunk = 1;
  int64_t shard = 0;
  std::vector<int64_t> starts;
};
MegatronLayout megatron_layout(const std::vector<Tensor>& tensors, int64_t devices);

}  // namespace tide::ragged
