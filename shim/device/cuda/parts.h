// A reduce-scatter cut into parts, so that one part is summed while the next is on its way: pushes
// take NVLink's time, sums take that of few thread blocks, and one after the other they would take
// both. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "shim/device/device.h"

namespace tide::device::cuda {

constexpr int kMostParts = 8;

struct Part {
  std::vector<Push> pushes;
  std::vector<SumRun> runs;
};

// How many parts of at least `part_bytes` pushed bytes each, 1 to kMostParts, on any of `size`
// ranks: the same on all of them, since places are. 1 unless the exchange is a reduce-scatter.
int count_parts(const Sum& sum, int size, uint64_t part_bytes);

// The pushes and runs of `exchange`, which it loses, cut at the same bytes of every place: part p
// of rank `rank` of the team's `size` fills what part p of the owners sums. Empty pushes and runs
// are left out.
std::vector<Part> cut_into_parts(Exchange& exchange, int rank, int count);

}  // namespace tide::device::cuda
