// Enqueues sums over all ranks that the NVSwitch makes, of what lies on all GPUs of a node at one
// offset: multicast_reduce.h.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "shim/device/cuda/context.h"
#include "shim/device/cuda/multicast_sum_launch.h"

namespace tide::device::cuda {

// output[0, count) = factor * ((output +) the sum over all ranks of what they hold at `from`).
struct LoadReduceRun {
  float* output = nullptr;
  uint64_t from = 0;  // multicast address of fp32 elements
  uint64_t count = 0;
};

struct LoadReduce {
  std::vector<LoadReduceRun> runs;
  bool accumulate = false;  // from the second batch of sources on
  float factor = 1.0f;      // in the last batch
};

struct LoadReduceSettings {
  int blocks = 4;                          // thread blocks of a launch
  std::chrono::microseconds longest{400};  // how long a launch may live
};

// Bytes per second that one block reads from the switch, and that a GPU's links bring at most: they
// turn `longest` into elements. Never measured: 64 KiB in flight over an assumed 3 us, and the data
// sheet's 450 GB/s of NVLink 4 in one direction.
constexpr double kLoadReduceBlockRate = 20e9;
constexpr double kLoadReduceLinkRate = 450e9;

// Pure. Throws tide::Error when an address is not a multiple of 4 or there is no block.
std::vector<LoadReduceLaunch> plan_load_reduce(const LoadReduce& sum,
                                               const LoadReduceSettings& settings);

class LoadReduceKernels {
 public:
  // Loads the kernel and waits until it is there, as SumKernels does. The context is current.
  // Throws tide::Error.
  explicit LoadReduceKernels(std::shared_ptr<Context> context);
  ~LoadReduceKernels();
  LoadReduceKernels(const LoadReduceKernels&) = delete;
  LoadReduceKernels& operator=(const LoadReduceKernels&) = delete;

  // Throws tide::Error.
  void enqueue(const LoadReduce& sum, const LoadReduceSettings& settings, CUstream stream) const;

 private:
  void launch(const LoadReduceLaunch& launch, int blocks, CUstream stream) const;

  const std::shared_ptr<Context> context_;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
};

}  // namespace tide::device::cuda
