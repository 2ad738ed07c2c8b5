// What the GPU tests share: checked runtime calls, owned memory and streams, a team of this rank.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shim/device/device.h"
#include "tests/device/ranks.h"

namespace tide::test {

// Throws tide::Error.
void good(cudaError_t result);

class GpuMemory {
 public:
  explicit GpuMemory(uint64_t bytes);
  ~GpuMemory() { cudaFree(data_); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  template <class T = std::byte>
  T* as() const {
    return static_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  uint64_t bytes_;
};

// Every byte of it, and done when it returns: cudaMemset does not wait, nor do GpuStreams for it.
void fill(const GpuMemory& memory, int byte);

class GpuStream {
 public:
  GpuStream() { good(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~GpuStream() { cudaStreamDestroy(stream_); }
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT: a stream is one
  // What follows here waits for what `other` holds now.
  void after(cudaStream_t other) const;

 private:
  cudaStream_t stream_ = nullptr;
};

// Keeps a stream from going on, without a kernel: a process killed in mid-kernel takes the other
// clients of its MPS daemon along.
class Hold {
 public:
  ~Hold() { end(); }
  void put_on(cudaStream_t stream);
  void end() { *over_ = true; }

 private:
  const std::shared_ptr<std::atomic<bool>> over_ = std::make_shared<std::atomic<bool>>(false);
};

// The current stream of this thread, as teams made by join_gpu() see it.
cudaStream_t& current_stream();

// True under tests/gpu/sanitized.
bool under_sanitizer();

// True under MPS, where the ranks' kernels run at the same time.
bool under_mps();

// Runs a rank per process on the GPUs of this machine in turn; usually on the only one.
std::vector<std::string> run_gpu_ranks(int size, const RankBody& body);
// What run_gpu_ranks() does first in a rank: takes its GPU. The number of GPUs.
int take_gpu(int rank);

// On the GPU that was taken; the timeout is 20 s times patience() where none is given, parts have
// the team's own size.
std::unique_ptr<device::Team> join_gpu(int rank, int size, Board& board, int timeout_ms = 0,
                                       uint64_t part_bytes = 0);

// An all-gather of parameters whose shards have `shards` bytes, parameter-major, by one rank. Its
// shards are its own memory, filled with the pattern of a round.
class GpuGather {
 public:
  GpuGather(std::vector<uint64_t> shards, int rank, int size);
  uint64_t bytes() const { return bytes_; }
  void fill(uint64_t round, cudaStream_t stream) const;
  device::Exchange exchange(const device::Slot& slot, const std::string& what) const;
  void check(const device::Slot& slot, uint64_t round, uint64_t* wrong, cudaStream_t stream) const;

 private:
  const std::vector<uint64_t> shards_;
  const int rank_;
  const int size_;
  std::vector<uint64_t> bases_;  // of the parameters in the slot
  std::vector<uint64_t> starts_;
  uint64_t bytes_ = 0;
  std::unique_ptr<GpuMemory> memory_;
};

// A reduce-scatter of `count` bf16 elements a rank into fp32, the last two of them padding.
class GpuScatter {
 public:
  GpuScatter(uint64_t count, int rank, int size);
  uint64_t bytes() const { return place_ * size_; }
  void fill(uint64_t round, cudaStream_t stream) const;
  device::Exchange exchange(const device::Slot& slot, const std::string& what) const;
  void check(uint64_t round, uint64_t* wrong, cudaStream_t stream) const;

 private:
  const uint64_t count_;
  const uint64_t filled_;
  const uint64_t place_;
  const int rank_;
  const int size_;
  GpuMemory gradients_;
  GpuMemory output_;
};

}  // namespace tide::test
