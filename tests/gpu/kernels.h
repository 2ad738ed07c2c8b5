// Kernels that the GPU tests and the benchmark run beside Tide's own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tide::test {

// What rank `rank` holds at byte `i` of parameter `parameter` in round `round`.
constexpr uint8_t pattern(int rank, uint64_t parameter, uint64_t i, uint64_t round) {
  return static_cast<uint8_t>(i * 31 + rank * 7 + parameter * 131 + round * 17 + (i >> 8));
}

// Element `i` of what rank `from` has for rank `to`: small integers, exact in every dtype.
constexpr float value(int from, int to, uint64_t i, uint64_t round) {
  return static_cast<float>((i * 5 + from * 3 + to + round) % 64);
}

void fill_pattern(void* to, uint64_t bytes, int rank, uint64_t parameter, uint64_t round,
                  cudaStream_t stream);
// Adds the number of bytes that are not the pattern to *wrong.
void check_pattern(const void* data, uint64_t bytes, int rank, uint64_t parameter, uint64_t round,
                   uint64_t* wrong, cudaStream_t stream);

// bf16 elements that rank `rank` has for rank `to`.
void fill_values(void* to_data, uint64_t count, int rank, int to, uint64_t round,
                 cudaStream_t stream);
// The sum over `size` ranks times `factor`, in fp32; elements from `filled` on are zero.
void check_sums(const float* data, uint64_t count, uint64_t filled, int rank, int size,
                uint64_t round, float factor, uint64_t* wrong, cudaStream_t stream);

// Keeps one SM busy for about `microseconds`.
void delay(int microseconds, cudaStream_t stream);
// Takes all threads and all shared memory of `multiprocessors` SMs until *stop (host memory) is not
// zero, at most 10 s.
void occupy(int multiprocessors, const volatile int* stop, cudaStream_t stream);
// A plain copy by `blocks` blocks; 16-byte aligned, a multiple of 16 bytes.
void copy_with_blocks(void* to, const void* from, uint64_t bytes, int blocks, cudaStream_t stream);
// out[i] = a[i] + b[i] on all SMs, which memory bounds; 16-byte aligned, a multiple of 4 elements.
void add(float* out, const float* a, const float* b, uint64_t count, int multiprocessors,
         cudaStream_t stream);

}  // namespace tide::test
