// Streams, events and what streams do. SOFTCUDA_DELAY: microseconds; before each operation a stream
// pauses for a random time below it, so that streams come to things in orders of all kinds.
// SOFTCUDA_CHANNELS: streams take turns in sharing so many hardware channels.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "tests/softcuda/driver.h"

namespace tide::softcuda {
namespace {

using std::chrono::microseconds;

// Of one stream's thread.
class Delay {
 public:
  void pause() {
    if (longest_ > 0) std::this_thread::sleep_for(microseconds(random_() % longest_));
  }

 private:
  const unsigned longest_ = [] {
    const char* set = std::getenv("SOFTCUDA_DELAY");
    return set == nullptr ? 0u : static_cast<unsigned>(std::max(0, std::atoi(set)));
  }();
  std::minstd_rand random_{std::random_device{}()};
};

CUresult find(CUstream handle, std::shared_ptr<CUstream_st>& stream) {
  if (ready() != CUDA_SUCCESS) return ready();
  const CUcontext context = current_context();
  const std::lock_guard lock(context->mutex);
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    if (context->default_stream == nullptr) {
      context->default_stream = std::make_shared<CUstream_st>(context);
      context->default_stream->start();
    }
    stream = context->default_stream;
    return CUDA_SUCCESS;
  }
  // Without touching it: a handle may be of a stream that is no more.
  const auto found =
      std::ranges::find(context->streams, handle, &std::shared_ptr<CUstream_st>::get);
  if (found == context->streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  stream = *found;
  return CUDA_SUCCESS;
}

CUresult enqueue(CUstream handle, std::function<void()> work) {
  std::shared_ptr<CUstream_st> stream;
  const CUresult found = find(handle, stream);
  if (found == CUDA_SUCCESS) stream->enqueue(std::move(work));
  return found;
}

// A stream of a GPU would stop its context here.
void check_reach(CUdeviceptr address, size_t bytes) {
  if (reaches(address, bytes)) return;
  std::fprintf(stderr, "softcuda: a stream came to memory that it no longer reaches: %llx\n",
               address);
  std::abort();
}

template <class Word>
void await_word(CUdeviceptr address, Word value, bool or_greater) {
  const auto* word = reinterpret_cast<const Word*>(address);
  for (auto nap = microseconds(5);; nap = std::min(2 * nap, microseconds(500))) {
    check_reach(address, sizeof(Word));
    const Word found = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    // "Greater" is cyclic.
    if (found == value ||
        (or_greater && static_cast<std::make_signed_t<Word>>(found - value) >= 0)) {
      return;
    }
    std::this_thread::sleep_for(nap);
  }
}

template <class Word>
void write_word(CUdeviceptr address, Word value) {
  check_reach(address, sizeof(Word));
  __atomic_store_n(reinterpret_cast<Word*>(address), value, __ATOMIC_RELEASE);
}

CUresult memory_operation(const CUstreamBatchMemOpParams& operation, std::function<void()>& work) {
  const auto& wait = operation.waitValue;
  const auto& write = operation.writeValue;
  const bool wide = operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                    operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
  const bool waits = operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
                     operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
  if (!waits && operation.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32 &&
      operation.operation != CU_STREAM_MEM_OP_WRITE_VALUE_64) {
    return refuse("a stream memory operation other than waits and writes");
  }
  const CUdeviceptr address = waits ? wait.address : write.address;
  const size_t bytes = wide ? 8 : 4;
  if (address % bytes != 0 || !reaches(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (waits) {
    if (wait.flags != CU_STREAM_WAIT_VALUE_EQ && wait.flags != CU_STREAM_WAIT_VALUE_GEQ) {
      return refuse("a stream's wait that is not EQ or GEQ");
    }
    const bool greater = wait.flags == CU_STREAM_WAIT_VALUE_GEQ;
    work = [=, value = wait.value64, narrow = wait.value] {
      wide ? await_word<uint64_t>(address, value, greater)
           : await_word<uint32_t>(address, narrow, greater);
    };
  } else {
    if (write.flags != CU_STREAM_WRITE_VALUE_DEFAULT) return refuse("a stream's write with flags");
    work = [=, value = write.value64, narrow = write.value] {
      wide ? write_word<uint64_t>(address, value) : write_word<uint32_t>(address, narrow);
    };
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace tide::softcuda

using namespace tide::softcuda;

void CUstream_st::start() {
  const char* channels = std::getenv("SOFTCUDA_CHANNELS");
  const size_t count = channels == nullptr ? 0 : std::strtoul(channels, nullptr, 10);
  while (context->channels.size() < count) context->channels.emplace_back();
  if (count > 0) channel = &context->channels[context->started++ % count];
  context->streams.insert(shared_from_this());
  std::thread([self = shared_from_this()] { self->run(); }).detach();
}

void CUstream_st::enqueue(std::function<void()> work) {
  if (channel == nullptr) return push(std::move(work));
  const std::lock_guard lock(channel->mutex);
  auto end = std::make_shared<Mark>();
  push([before = std::exchange(channel->last, end), end, work = std::move(work)] {
    if (before != nullptr) before->await();
    work();
    end->reach();
  });
}

void CUstream_st::push(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void CUstream_st::close() {
  context->closed.insert(shared_from_this());
  context->streams.erase(shared_from_this());
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_one();
}

std::shared_ptr<Mark> CUstream_st::mark() {
  auto mark = std::make_shared<Mark>();
  enqueue([mark] { mark->reach(); });
  return mark;
}

bool CUstream_st::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !working_;
}

void CUstream_st::run() {
  Delay delay;
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) {
      // Once more with both locks: cuCtxSynchronize() may have come between.
      lock.unlock();
      const std::lock_guard all(context->mutex);
      lock.lock();
      if (!queue_.empty()) continue;
      context->closed.erase(shared_from_this());
      return;
    }
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    working_ = true;
    lock.unlock();
    delay.pause();
    work();
    lock.lock();
    working_ = false;
  }
}

CUresult cuStreamCreateWithPriority(CUstream* result, unsigned flags, int) {
  if (ready() != CUDA_SUCCESS) return ready();
  if (flags != CU_STREAM_NON_BLOCKING) return refuse("a stream that waits for the default stream");
  const CUcontext context = current_context();
  const auto stream = std::make_shared<CUstream_st>(context);
  *result = stream.get();
  const std::lock_guard lock(context->mutex);
  stream->start();
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  std::shared_ptr<CUstream_st> stream;
  const CUresult found = find(handle, stream);
  if (found != CUDA_SUCCESS) return found;
  const std::lock_guard lock(stream->context->mutex);
  stream->close();
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle) {
  std::shared_ptr<CUstream_st> stream;
  const CUresult found = find(handle, stream);
  if (found != CUDA_SUCCESS) return found;
  return stream->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle) {
  std::shared_ptr<CUstream_st> stream;
  const CUresult found = find(handle, stream);
  if (found == CUDA_SUCCESS) stream->mark()->await();
  return found;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  std::shared_ptr<CUstream_st> stream;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return find(handle, stream);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  if (flags != 0) return refuse("cuStreamWaitEvent with flags");
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Mark> mark;
  {
    const std::lock_guard lock(event->mutex);
    mark = event->last;
  }
  return enqueue(handle, [mark] {
    if (mark != nullptr) mark->await();
  });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  if (ready() != CUDA_SUCCESS) return ready();
  if (flags != CU_EVENT_DISABLE_TIMING) return refuse("an event with timing");
  *event = new CUevent_st();
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  if (ready() != CUDA_SUCCESS) return ready();
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<CUstream_st> stream;
  const CUresult found = find(handle, stream);
  if (found != CUDA_SUCCESS) return found;
  const std::lock_guard lock(event->mutex);
  event->last = stream->mark();
  return CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp(CUstream handle, unsigned count, CUstreamBatchMemOpParams* operations,
                            unsigned flags) {
  if (flags != 0 || count > 256) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::function<void()>> works(count);
  for (unsigned i = 0; i < count; ++i) {
    const CUresult result = memory_operation(operations[i], works[i]);
    if (result != CUDA_SUCCESS) return result;
  }
  for (auto& work : works) {
    const CUresult result = enqueue(handle, std::move(work));
    if (result != CUDA_SUCCESS) return result;
  }
  return ready();
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return enqueue(handle, [=] {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  });
}

CUresult cuLaunchKernel(CUfunction kernel, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, unsigned, CUstream handle, void** parameters, void** extra) {
  if (extra != nullptr) return refuse("a kernel's parameters as a buffer");
  std::function<void()> work = kernel_work(kernel, parameters);
  return work ? enqueue(handle, std::move(work)) : CUDA_ERROR_INVALID_VALUE;
}
