// What the parts of the double share. Device memory is host memory that the CPU may look at; a
// stream is a thread; each GPU has one context. Nothing of it is ever destroyed: streams may work
// until the process ends.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace tide::softcuda {

// A point that a stream comes to.
class Mark {
 public:
  void reach() {
    const std::lock_guard lock(mutex_);
    reached_ = true;
    changed_.notify_all();
  }
  void await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
};

// What several streams share: all that they do comes in the order in which it was enqueued.
struct Channel {
  std::mutex mutex;
  std::shared_ptr<Mark> last;  // behind what was enqueued last
};

// Says once for each text that the double does not do `what`.
CUresult refuse(const char* what);

// CUDA_SUCCESS when cuInit() was called in this very process: like the driver, the double does not
// work in a forked child of the process that started it.
CUresult started();
// The same, and the calling thread has a current context.
CUresult ready();
CUcontext current_context();

// Does a stream reach all of this memory? Memory of the device that may be accessed, and registered
// host memory.
bool reaches(CUdeviceptr address, size_t bytes);

// What a kernel does when its turn has come. Its parameters are read now. Nothing where there is no
// such kernel.
std::function<void()> kernel_work(CUfunction kernel, void** parameters);

}  // namespace tide::softcuda

struct CUevent_st {
  std::mutex mutex;
  std::shared_ptr<tide::softcuda::Mark> last;  // where it was recorded last; null: nowhere yet
};

struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
  explicit CUstream_st(CUcontext of) : context(of) {}
  // Starts its thread, which ends after close() with what was enqueued. Both are for who holds
  // context->mutex.
  void start();
  void close();
  void enqueue(std::function<void()> work);
  // Where it is when all that was enqueued so far is done.
  std::shared_ptr<tide::softcuda::Mark> mark();
  bool idle();

  const CUcontext context;
  tide::softcuda::Channel* channel = nullptr;  // null: its own

 private:
  void run();
  void push(std::function<void()> work);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool working_ = false;
  bool closed_ = false;
};

struct CUctx_st {
  int device = 0;
  std::mutex mutex;
  int retained = 0;
  std::set<std::shared_ptr<CUstream_st>> streams;
  std::set<std::shared_ptr<CUstream_st>> closed;  // those that are not through with their work
  std::shared_ptr<CUstream_st> default_stream;    // made when it is first used; one of `streams`
  std::deque<tide::softcuda::Channel> channels;   // SOFTCUDA_CHANNELS of them; none: one a stream
  size_t started = 0;                             // streams
};
