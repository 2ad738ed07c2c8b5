// Destructors ignore what the driver answers: a process that ends has shut it down before.
#include "shim/device/cuda/context.h"

#include <string>

#include "include/tide/error.h"
#include "shim/device/cuda/driver.h"

namespace tide::device::cuda {

std::string pci_address(int ordinal) {
  const std::string name = "GPU " + std::to_string(ordinal);
  CUdevice device = 0;
  char address[32] = "";
  check(driver().cuDeviceGet(&device, ordinal), "open " + name);
  check(driver().cuDeviceGetPCIBusId(address, sizeof address, device),
        "read the PCI address of " + name);
  return address;
}

Context::Context(int ordinal) : ordinal_(ordinal) {
  const Driver& cuda = driver();
  int count = 0;
  check(cuda.cuDeviceGetCount(&count), "count the GPUs");
  if (ordinal < 0 || ordinal >= count) {
    throw Error("there is no GPU " + std::to_string(ordinal) + " of " + std::to_string(count));
  }
  const std::string name = "GPU " + std::to_string(ordinal);
  check(cuda.cuDeviceGet(&device_, ordinal), "open " + name);
  if (attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) < 9) {
    throw Error(name + " has a compute capability below 9.0");
  }
  for (const auto& [which, what] : {
           std::pair{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                     "virtual memory management"},
           std::pair{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                     "memory shared by descriptor"},
           std::pair{CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                     "64-bit stream memory operations"},
       }) {
    if (attribute(which) == 0) throw Error(name + " does not support " + what);
  }
  check(cuda.cuDevicePrimaryCtxRetain(&handle_, device_), "use the context of " + name);
}

Context::~Context() { driver().cuDevicePrimaryCtxRelease(device_); }

int Context::attribute(CUdevice_attribute which) const {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, which, device_),
        "read an attribute of GPU " + std::to_string(ordinal_));
  return value;
}

Current::Current(const Context& context)
    : pushed_(driver().cuCtxPushCurrent(context.handle()) == CUDA_SUCCESS) {}

Current::~Current() {
  CUcontext popped = nullptr;
  if (pushed_) driver().cuCtxPopCurrent(&popped);
}

EventPool::~EventPool() {
  const Current current(*context_);
  for (CUevent event : free_) driver().cuEventDestroy(event);
}

Event EventPool::take() {
  CUevent event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  if (event == nullptr) {
    check(driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "make an event");
  }
  return {event, [pool = shared_from_this()](CUevent e) { pool->give(e); }};
}

Event EventPool::record(CUstream stream) {
  Event event = take();
  check(driver().cuEventRecord(event.get(), stream), "record an event");
  return event;
}

void EventPool::give(CUevent event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

Stream::Stream(std::shared_ptr<Context> context) : context_(std::move(context)) {
  int least = 0;
  int greatest = 0;
  check(driver().cuCtxGetStreamPriorityRange(&least, &greatest), "read the stream priorities");
  check(driver().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, greatest),
        "make a stream");
}

Stream::~Stream() {
  const Current current(*context_);
  driver().cuStreamDestroy(stream_);
}

}  // namespace tide::device::cuda
