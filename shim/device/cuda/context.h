// The primary context of one GPU, its events and its streams, as owned things.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tide::device::cuda {

// Of GPU `ordinal`, as the driver writes it: "0000:3B:00.0". Throws tide::Error.
std::string pci_address(int ordinal);

// The context that the job's CUDA runtime uses too. Kept until the last owner is gone.
class Context {
 public:
  // Throws tide::Error when there is no such device or it lacks what a team needs.
  explicit Context(int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int ordinal() const { return ordinal_; }
  CUdevice device() const { return device_; }
  CUcontext handle() const { return handle_; }
  int attribute(CUdevice_attribute which) const;

 private:
  int ordinal_;
  CUdevice device_ = 0;
  CUcontext handle_ = nullptr;
};

// Makes the context current in this scope and thread. Not fatal where the driver is shutting down:
// the calls that follow then fail.
class Current {
 public:
  explicit Current(const Context& context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  bool pushed_;
};

// An event without timing. Given back to its pool when the last owner drops it.
using Event = std::shared_ptr<CUevent_st>;

// Thread-safe. Events may outlive the pool's owner: they keep the pool.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~EventPool();
  // The context is current. Throws tide::Error.
  Event take();
  // An event recorded on `stream` now.
  Event record(CUstream stream);

 private:
  void give(CUevent event);

  const std::shared_ptr<Context> context_;
  std::mutex mutex_;
  std::vector<CUevent> free_;
};

// A stream that does not wait for the default stream, of the highest priority: the sums of a
// reduce-scatter are short and others wait for them.
class Stream {
 public:
  explicit Stream(std::shared_ptr<Context> context);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream get() const { return stream_; }

 private:
  const std::shared_ptr<Context> context_;
  CUstream stream_ = nullptr;
};

}  // namespace tide::device::cuda
