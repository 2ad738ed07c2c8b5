#include "shim/device/cuda/stage.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "include/tide/error.h"
#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/memory.h"

namespace tide::device::cuda {
namespace {

thread_local CUstream entered = nullptr;

// A stream is looked at this often while the carrier waits for it: fast at first.
constexpr int kEagerLooks = 2000;
constexpr std::chrono::microseconds kPause{20};
// What is left for a failed team's streams, which its watchdog releases, to come to an end.
constexpr std::chrono::seconds kDrain{10};

class CudaStage : public Stage {
 public:
  CudaStage(std::shared_ptr<Context> context, StageOptions options)
      : context_(context),
        options_(std::move(options)),
        events_(std::make_shared<EventPool>(context)),
        stream_(context) {}

  // Where something hangs, what it may still touch is left as it is.
  ~CudaStage() override {
    if (stuck_) new std::vector<Mirror>(std::move(mirrors_));
  }

  std::span<std::byte> host(uint64_t bytes) override {
    const Current current(*context_);
    if (mirrors_.empty() || mirrors_.back().memory->bytes() < bytes) {
      // Doubling keeps the sum of what is left over below what is in use.
      if (!mirrors_.empty()) bytes = std::max(bytes, 2 * mirrors_.back().memory->bytes());
      std::shared_ptr<host::Mapping> memory = host::create_memory(bytes).mapping;
      mirrors_.push_back({memory, PinnedMapping(context_, memory)});
    }
    return {mirrors_.back().memory->data(), mirrors_.back().memory->bytes()};
  }

  std::shared_ptr<void> mark() override {
    const Current current(*context_);
    return events_->record(options_.current_stream());
  }

  void enter(const std::shared_ptr<void>& mark) override {
    const Current current(*context_);
    entered = stream_.get();
    check(driver().cuStreamWaitEvent(stream_.get(), static_cast<CUevent>(mark.get()), /*flags=*/0),
          "wait for the caller");
  }

  void copy(void* to, const void* from, uint64_t bytes) override {
    const Current current(*context_);
    check(driver().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                 reinterpret_cast<CUdeviceptr>(from), bytes, stream_.get()),
          "copy between a GPU and host memory");
  }

  // Not cuStreamSynchronize: it would keep a core busy for as long as a GPU computes.
  void finish() override {
    const Current current(*context_);
    auto deadline = std::chrono::steady_clock::now() + options_.timeout;
    bool failed = false;
    for (int looks = 0;; ++looks) {
      const CUresult result = driver().cuStreamQuery(stream_.get());
      if (result == CUDA_SUCCESS) return;
      if (result != CUDA_ERROR_NOT_READY) check(result, "wait for copies of a GPU");
      if (looks < kEagerLooks) continue;
      const auto now = std::chrono::steady_clock::now();
      if (!failed && !options_.failure().empty()) {
        failed = true;
        deadline = std::min(deadline, now + kDrain);
      }
      if (now >= deadline) {
        stuck_ = true;
        throw Error(failed ? options_.failure()
                           : "what the job had enqueued before did not end in time");
      }
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  struct Mirror {
    std::shared_ptr<host::Mapping> memory;
    PinnedMapping pinned;
  };

  const std::shared_ptr<Context> context_;
  const StageOptions options_;
  const std::shared_ptr<EventPool> events_;
  const Stream stream_;
  std::vector<Mirror> mirrors_;
  bool stuck_ = false;  // something did not end
};

}  // namespace

CUstream entered_stream() { return entered; }

std::unique_ptr<Stage> make_stage(std::shared_ptr<Context> context, StageOptions options) {
  const Current current(*context);
  return std::make_unique<CudaStage>(std::move(context), std::move(options));
}

}  // namespace tide::device::cuda
