// See gpu.h.
#include "tests/gpu/gpu.h"

#include <cstdlib>
#include <thread>

#include "include/tide/error.h"
#include "shim/device/cuda/team.h"
#include "tests/gpu/kernels.h"

namespace tide::test {
namespace {

constexpr float kFactor = 0.5f;

uint64_t align(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

void good(cudaError_t result) {
  if (result != cudaSuccess) throw Error(cudaGetErrorString(result));
}

GpuMemory::GpuMemory(uint64_t bytes) : bytes_(bytes) { good(cudaMalloc(&data_, bytes)); }

void fill(const GpuMemory& memory, int byte) {
  good(cudaMemset(memory.as(), byte, memory.bytes()));
  good(cudaStreamSynchronize(cudaStreamLegacy));
}

void GpuStream::after(cudaStream_t other) const {
  cudaEvent_t event;
  good(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  good(cudaEventRecord(event, other));
  good(cudaStreamWaitEvent(stream_, event));
  good(cudaEventDestroy(event));
}

void Hold::put_on(cudaStream_t stream) {
  using Over = std::shared_ptr<std::atomic<bool>>;
  const auto wait = [](void* argument) {
    const std::unique_ptr<Over> over(static_cast<Over*>(argument));
    while (!**over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  good(cudaLaunchHostFunc(stream, wait, new Over(over_)));
}

cudaStream_t& current_stream() {
  thread_local cudaStream_t stream = nullptr;
  return stream;
}

bool under_sanitizer() { return std::getenv("TIDE_TEST_TOOL") != nullptr; }

bool under_mps() { return std::getenv("CUDA_MPS_PIPE_DIRECTORY") != nullptr; }

int take_gpu(int rank) {
  int count = 0;
  good(cudaGetDeviceCount(&count));
  good(cudaSetDevice(rank % count));
  return count;
}

std::vector<std::string> run_gpu_ranks(int size, const RankBody& body) {
  return run_ranks(Mode::kProcesses, size, [&](int rank, Board& board) {
    take_gpu(rank);
    return body(rank, board);
  });
}

std::unique_ptr<device::Team> join_gpu(int rank, int size, Board& board, int timeout_ms,
                                       uint64_t part_bytes) {
  BoardRendezvous rendezvous(board, rank);
  device::CudaTeamOptions options;
  options.timeout = std::chrono::milliseconds(timeout_ms > 0 ? timeout_ms : 20000 * patience());
  options.current_stream = [] { return current_stream(); };
  if (part_bytes > 0) options.part_bytes = part_bytes;
  good(cudaGetDevice(&options.ordinal));
  return device::make_cuda_team(rank, size, rendezvous, options);
}

GpuGather::GpuGather(std::vector<uint64_t> shards, int rank, int size)
    : shards_(std::move(shards)), rank_(rank), size_(size) {
  uint64_t own = 0;
  for (uint64_t shard : shards_) {
    bases_.push_back(bytes_);
    bytes_ += align(shard * size_);
    starts_.push_back(own);
    own += align(shard);
  }
  memory_ = std::make_unique<GpuMemory>(own + 1);
}

void GpuGather::fill(uint64_t round, cudaStream_t stream) const {
  for (size_t p = 0; p < shards_.size(); ++p) {
    if (shards_[p] > 0) {
      fill_pattern(memory_->as() + starts_[p], shards_[p], rank_, p, round, stream);
    }
  }
}

device::Exchange GpuGather::exchange(const device::Slot& slot, const std::string& what) const {
  device::Exchange result;
  result.what = what;
  result.landing = slot;
  for (size_t p = 0; p < shards_.size(); ++p) {
    for (int q = 0; q < size_; ++q) {
      result.pushes.push_back(
          {q, memory_->as() + starts_[p], bases_[p] + rank_ * shards_[p], shards_[p]});
    }
  }
  return result;
}

void GpuGather::check(const device::Slot& slot, uint64_t round, uint64_t* wrong,
                      cudaStream_t stream) const {
  for (size_t p = 0; p < shards_.size(); ++p) {
    for (int q = 0; q < size_ && shards_[p] > 0; ++q) {
      check_pattern(slot.data + bases_[p] + q * shards_[p], shards_[p], q, p, round, wrong, stream);
    }
  }
}

GpuScatter::GpuScatter(uint64_t count, int rank, int size)
    : count_(count),
      filled_(count > 2 ? count - 2 : 0),
      place_(align(count * 2)),
      rank_(rank),
      size_(size),
      gradients_(count * size * 2),
      output_(count * 4) {}

void GpuScatter::fill(uint64_t round, cudaStream_t stream) const {
  for (int to = 0; to < size_; ++to) {
    fill_values(gradients_.as() + to * count_ * 2, count_, rank_, to, round, stream);
  }
}

device::Exchange GpuScatter::exchange(const device::Slot& slot, const std::string& what) const {
  device::Exchange result;
  result.what = what;
  result.landing = slot;
  for (int to = 0; to < size_; ++to) {
    if (to == rank_) continue;
    result.pushes.push_back({to, gradients_.as() + to * count_ * 2, rank_ * place_, filled_ * 2});
  }
  result.sum.in = device::DType::kBFloat16;
  result.sum.out = device::DType::kFloat32;
  result.sum.output = output_.as();
  result.sum.place_bytes = place_;
  result.sum.factor = kFactor;
  result.sum.reduce_scatter = true;
  result.sum.runs = {{0, filled_, gradients_.as() + rank_ * count_ * 2, 0}};
  result.sum.zeros = {{filled_, count_ - filled_}};
  return result;
}

void GpuScatter::check(uint64_t round, uint64_t* wrong, cudaStream_t stream) const {
  check_sums(output_.as<float>(), count_, filled_, rank_, size_, round, kFactor, wrong, stream);
}

}  // namespace tide::test
