// The rest of a CUDA driver, played: linked in place of shim/device/cuda/driver.cc, so that whole
// teams run without a GPU, one rank a thread. Memory and multicast are fake_fabric's. A stream is a
// queue; one thread takes the queues' heads, an operation at a time, in an order that a seed
// chooses: where two operations need not come in one order, some seed lets them come in the other.
// Kernels are the models of the launches they are told.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tide::test::gpu {

// Before the first team and after the last one; fabric::reset() comes first.
void reset(uint64_t seed);

// A stream of rank `rank`.
CUstream make_stream(int rank);

// What ranks have enqueued since forget(), by rank and in order, on all of their streams:
// "copy to 1" (a GPU), "copy to all" (a multicast address), "copy to host", "write", "wait"
// (words), "tide_sum_Float32_Float32_0" (kernels).
std::vector<std::string> enqueued(int rank);
void forget(int rank);
// Events that exist, of all ranks.
size_t events();

}  // namespace tide::test::gpu
