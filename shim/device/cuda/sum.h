// Enqueues the additions of a reduce-scatter.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "shim/device/cuda/context.h"
#include "shim/device/cuda/sum_launch.h"
#include "shim/device/device.h"

namespace tide::device::cuda {

struct SumSettings {
  int blocks = 16;  // thread blocks of a launch
  // How long a launch may live: SMs are given back soon to kernels that wait for them.
  std::chrono::microseconds longest{400};
};

// Bytes per second, read and written, that one block moves when it has an SM to itself, and that
// all blocks together move at most (one H200, `make bench-gpu`): they turn `longest` into bytes.
constexpr double kBlockRate = 70e9;
constexpr double kMemoryRate = 2.4e12;

// The launches of a sum on rank `rank` of `ranks`, whose landing slot begins at `landing`. Pure.
std::vector<SumLaunch> plan_sum(const Sum& sum, int rank, int ranks, uint64_t landing,
                                const SumSettings& settings);

class SumKernels {
 public:
  // Loads all kernels and waits until they are there: loading one later could wait for streams that
  // wait for peers. The context is current. Throws tide::Error.
  explicit SumKernels(std::shared_ptr<Context> context);
  ~SumKernels();
  SumKernels(const SumKernels&) = delete;
  SumKernels& operator=(const SumKernels&) = delete;

  // Throws tide::Error.
  void enqueue(const Sum& sum, int rank, int ranks, uint64_t landing, const SumSettings& settings,
               CUstream stream) const;

 private:
  void launch(CUfunction kernel, const SumLaunch& launch, int blocks, CUstream stream) const;

  const std::shared_ptr<Context> context_;
  CUmodule module_ = nullptr;
  CUfunction kernels_[3][2][4] = {};  // by type in, type out, number of ranks
};

}  // namespace tide::device::cuda
