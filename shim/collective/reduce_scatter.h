// The reduce-scatter inside one node: every rank pushes to each other rank that rank's rows of all
// gradients, as they are, and each rank sums what it received with its own rows in fp32, straight
// into its output. No packed buffer, no widening before the wire.
#pragma once

#include <memory>
#include <span>

#include "shim/collective/call.h"
#include "shim/device/device.h"
#include "shim/layout/parameter_major.h"

namespace tide::collective {

struct ReduceArguments {
  std::span<const void* const> gradients;  // contiguous, of `in` elements, one per layout piece
  device::DType in = device::DType::kFloat32;
  void* output = nullptr;  // layout.out elements of `out`; padding is set to zero
  device::DType out = device::DType::kFloat32;
  float factor = 1.0f;  // applied once, in fp32, to the sum over ranks 0, 1, 2, ...
};

// The landing memory is acquired and released here. Throws tide::Error when the team has failed.
std::shared_ptr<device::Pending> reduce_scatter(std::shared_ptr<device::Team> team,
                                                const layout::ReduceLayout& layout,
                                                const ReduceArguments& arguments, Call call);

}  // namespace tide::collective
