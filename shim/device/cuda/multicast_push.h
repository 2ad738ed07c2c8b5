// Which pushes of an exchange may go through the multicast address: those that every rank gets
// alike, where all ranks granted the same place of multicast memory. Ranks need not agree on a
// place beforehand: each sees what all of them granted, so all come to the same answer, and an
// exchange whose places differ goes to each rank by itself. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shim/device/cuda/slot_heap.h"
#include "shim/device/device.h"

namespace tide::device::cuda {

// The offset of the landing slots in multicast memory when all ranks granted the same place of
// segment `segment` (the number that multicast memory has on each of them).
std::optional<uint64_t> common_offset(std::span<const Place> granted, uint32_t segment);

struct SplitPushes {
  std::vector<Push> to_all;   // `peer` says nothing; in order of `to`
  std::vector<Push> to_each;  // as they were
};

// Of the pushes of one rank in a team of `size`: those that go from the same memory to the same
// byte of every rank's slot, its own included, become one.
SplitPushes split_pushes(const std::vector<Push>& pushes, int size);

}  // namespace tide::device::cuda
