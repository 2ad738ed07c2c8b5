// Grid-stride loops; nothing here is tuned but the copy, which is what sums are measured against.
#include <cuda_bf16.h>

#include "tests/gpu/kernels.h"

namespace tide::test {
namespace {

constexpr int kThreads = 256;

int blocks_for(uint64_t count) {
  const uint64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<int>(blocks < 1 ? 1 : blocks > 64 ? 64 : blocks);
}

__device__ uint64_t first() { return blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; }
__device__ uint64_t stride() { return uint64_t{gridDim.x} * blockDim.x; }

__global__ void fill_pattern_kernel(uint8_t* to, uint64_t bytes, int rank, uint64_t parameter,
                                    uint64_t round) {
  for (uint64_t i = first(); i < bytes; i += stride()) to[i] = pattern(rank, parameter, i, round);
}

__global__ void check_pattern_kernel(const uint8_t* data, uint64_t bytes, int rank,
                                     uint64_t parameter, uint64_t round,
                                     unsigned long long* wrong) {
  unsigned long long count = 0;
  for (uint64_t i = first(); i < bytes; i += stride()) {
    count += data[i] != pattern(rank, parameter, i, round);
  }
  if (count > 0) atomicAdd(wrong, count);
}

__global__ void fill_values_kernel(__nv_bfloat16* data, uint64_t count, int rank, int to,
                                   uint64_t round) {
  for (uint64_t i = first(); i < count; i += stride()) {
    data[i] = __float2bfloat16(value(rank, to, i, round));
  }
}

__global__ void check_sums_kernel(const float* data, uint64_t count, uint64_t filled, int rank,
                                  int size, uint64_t round, float factor,
                                  unsigned long long* wrong) {
  unsigned long long bad = 0;
  for (uint64_t i = first(); i < count; i += stride()) {
    float expected = 0.0f;
    for (int q = 0; i < filled && q < size; ++q) expected += value(q, rank, i, round);
    bad += data[i] != expected * factor;
  }
  if (bad > 0) atomicAdd(wrong, bad);
}

__device__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void delay_kernel(uint64_t ns) {
  const uint64_t begin = nanoseconds();
  while (nanoseconds() - begin < ns) __nanosleep(500);
}

__global__ void occupy_kernel(const volatile int* stop) {
  extern __shared__ char all_of_it[];
  all_of_it[threadIdx.x] = 0;
  const uint64_t begin = nanoseconds();
  // Only one thread of a block looks: host memory is far away, and others want to reach it too.
  // Ends by itself, whatever happens to the one who would stop it.
  if (threadIdx.x == 0) {
    while (*stop == 0 && nanoseconds() - begin < 10'000'000'000) __nanosleep(100'000);
  }
  __syncthreads();
}

// 1024 threads with four 16-byte loads in flight each.
__global__ void __launch_bounds__(1024, 1)
    copy_kernel(uint4* to, const uint4* from, uint64_t count) {
  constexpr int kUnroll = 4;
  const uint64_t step = stride();
  for (uint64_t i = first(); i < count; i += kUnroll * step) {
    uint4 bits[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step < count) bits[u] = __ldcs(from + i + u * step);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step < count) __stcs(to + i + u * step, bits[u]);
    }
  }
}

__global__ void __launch_bounds__(1024)
    add_kernel(float4* out, const float4* a, const float4* b, uint64_t count) {
  for (uint64_t i = first(); i < count; i += stride()) {
    const float4 x = __ldcs(a + i), y = __ldcs(b + i);
    __stcs(out + i, make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w));
  }
}

}  // namespace

void fill_pattern(void* to, uint64_t bytes, int rank, uint64_t parameter, uint64_t round,
                  cudaStream_t stream) {
  fill_pattern_kernel<<<blocks_for(bytes), kThreads, 0, stream>>>(static_cast<uint8_t*>(to), bytes,
                                                                  rank, parameter, round);
}

void check_pattern(const void* data, uint64_t bytes, int rank, uint64_t parameter, uint64_t round,
                   uint64_t* wrong, cudaStream_t stream) {
  check_pattern_kernel<<<blocks_for(bytes), kThreads, 0, stream>>>(
      static_cast<const uint8_t*>(data), bytes, rank, parameter, round,
      reinterpret_cast<unsigned long long*>(wrong));
}

void fill_values(void* data, uint64_t count, int rank, int to, uint64_t round,
                 cudaStream_t stream) {
  fill_values_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(data),
                                                                 count, rank, to, round);
}

void check_sums(const float* data, uint64_t count, uint64_t filled, int rank, int size,
                uint64_t round, float factor, uint64_t* wrong, cudaStream_t stream) {
  check_sums_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
      data, count, filled, rank, size, round, factor, reinterpret_cast<unsigned long long*>(wrong));
}

void delay(int microseconds, cudaStream_t stream) {
  delay_kernel<<<1, 1, 0, stream>>>(uint64_t{1000} * microseconds);
}

void occupy(int multiprocessors, const volatile int* stop, cudaStream_t stream) {
  // Two blocks fill an SM of sm_90: 2048 threads, and 228 KiB of which each block loses one.
  constexpr int kShared = 113 * 1024;
  cudaFuncSetAttribute(occupy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  occupy_kernel<<<2 * multiprocessors, 1024, kShared, stream>>>(stop);
}

void copy_with_blocks(void* to, const void* from, uint64_t bytes, int blocks, cudaStream_t stream) {
  copy_kernel<<<blocks, 1024, 0, stream>>>(static_cast<uint4*>(to), static_cast<const uint4*>(from),
                                           bytes / 16);
}

void add(float* out, const float* a, const float* b, uint64_t count, int multiprocessors,
         cudaStream_t stream) {
  add_kernel<<<2 * multiprocessors, 1024, 0, stream>>>(
      reinterpret_cast<float4*>(out), reinterpret_cast<const float4*>(a),
      reinterpret_cast<const float4*>(b), count / 4);
}

}  // namespace tide::test
