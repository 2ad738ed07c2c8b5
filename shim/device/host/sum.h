// The additions of a reduce-scatter on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shim/device/device.h"

namespace tide::device::host {

// output[i] = cast(factor * (((x_0[i] + x_1[i]) + x_2[i]) + ...)) for i < count: additions in fp32
// in the order of `sources`, one multiplication (none when factor is 1), bf16 rounded to nearest
// even, NaN kept. Pointers need no alignment; `out` is kFloat32 or kBFloat16. The same bits on
// every CPU. A large output is streamed: stream_fence() (copy.h) before another thread is told.
void sum(DType in, std::span<const std::byte* const> sources, DType out, float factor,
         uint64_t count, std::byte* output);

// For tests: the same with one of the compiled variants, 0 the portable one. False when this CPU
// or build does not have it.
bool sum_with_variant(int variant, DType in, std::span<const std::byte* const> sources, DType out,
                      float factor, uint64_t count, std::byte* output);

}  // namespace tide::device::host
