// Start, GPUs, contexts, the names of errors. SOFTCUDA_DEVICES: how many GPUs there are, 1 by
// default; all reach each other's memory.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/softcuda/driver.h"

namespace tide::softcuda {
namespace {

std::atomic<pid_t> started_in{0};
// Of the calling thread. Plain data: destructors of the thread's own variables come here too.
// In static TLS: that of a library opened later is freed by other threads, in the dynamic linker,
// which ThreadSanitizer takes for a race.
struct Stack {
  CUcontext contexts[16];
  int depth;
};
[[gnu::tls_model("initial-exec")]] thread_local Stack current;

int devices() {
  const char* set = std::getenv("SOFTCUDA_DEVICES");
  return set == nullptr ? 1 : std::max(0, std::atoi(set));
}

// Of device `device`; made together, when the first is asked for.
CUcontext context_of(int device) {
  static std::vector<CUctx_st>* const all = [] {
    auto* made = new std::vector<CUctx_st>(devices());
    for (int i = 0; i < devices(); ++i) (*made)[i].device = i;
    return made;
  }();
  return &all->at(device);
}

bool exists(CUdevice device) { return device >= 0 && device < devices(); }

}  // namespace

CUresult refuse(const char* what) {
  static std::mutex mutex;
  static auto* const said = new std::set<std::string>();
  const std::lock_guard lock(mutex);
  if (said->insert(what).second) std::fprintf(stderr, "softcuda: %s is not supported\n", what);
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult started() { return started_in == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

CUresult ready() {
  if (started() != CUDA_SUCCESS) return started();
  return current.depth == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUcontext current_context() { return current.contexts[current.depth - 1]; }

}  // namespace tide::softcuda

using namespace tide::softcuda;

CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (devices() == 0) return CUDA_ERROR_NO_DEVICE;
  pid_t none = 0;
  started_in.compare_exchange_strong(none, getpid());
  return started();
}

CUresult cuDeviceGetCount(int* count) {
  *count = devices();
  return started();
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!exists(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return started();
}

// On a bus that no machine has: NICs near to it are not found.
CUresult cuDeviceGetPCIBusId(char* address, int bytes, CUdevice device) {
  if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(address, static_cast<size_t>(bytes), "FFFF:%02X:00.0", device);
  return started();
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
      *value = 0;
      break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      *value = 1;
      break;
    default:
      return refuse("an attribute of the GPU that was asked for");
  }
  return started();
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (started() != CUDA_SUCCESS) return started();
  if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = context_of(device);
  const std::lock_guard lock((*context)->mutex);
  ++(*context)->retained;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  if (started() != CUDA_SUCCESS) return started();
  if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  const CUcontext context = context_of(device);
  const std::lock_guard lock(context->mutex);
  if (context->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --context->retained;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  if (started() != CUDA_SUCCESS) return started();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(context->mutex);
  if (context->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (current.depth == static_cast<int>(std::size(current.contexts)))
    return refuse("a deeper stack of contexts");
  current.contexts[current.depth++] = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  if (ready() != CUDA_SUCCESS) return ready();
  if (context != nullptr) *context = current_context();
  --current.depth;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  if (ready() != CUDA_SUCCESS) return ready();
  std::vector<std::shared_ptr<Mark>> marks;
  {
    const std::lock_guard lock(current_context()->mutex);
    for (const auto& stream : current_context()->streams) marks.push_back(stream->mark());
    for (const auto& stream : current_context()->closed) marks.push_back(stream->mark());
  }
  for (const auto& mark : marks) mark->await();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return ready();
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
#define SOFTCUDA_NAME(NAME) \
  case NAME:                \
    *name = #NAME;          \
    return CUDA_SUCCESS
    SOFTCUDA_NAME(CUDA_SUCCESS);
    SOFTCUDA_NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    SOFTCUDA_NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    SOFTCUDA_NAME(CUDA_ERROR_INVALID_CONTEXT);
    SOFTCUDA_NAME(CUDA_ERROR_INVALID_DEVICE);
    SOFTCUDA_NAME(CUDA_ERROR_INVALID_HANDLE);
    SOFTCUDA_NAME(CUDA_ERROR_INVALID_IMAGE);
    SOFTCUDA_NAME(CUDA_ERROR_INVALID_VALUE);
    SOFTCUDA_NAME(CUDA_ERROR_NOT_FOUND);
    SOFTCUDA_NAME(CUDA_ERROR_NOT_INITIALIZED);
    SOFTCUDA_NAME(CUDA_ERROR_NOT_READY);
    SOFTCUDA_NAME(CUDA_ERROR_NOT_SUPPORTED);
    SOFTCUDA_NAME(CUDA_ERROR_NO_DEVICE);
    SOFTCUDA_NAME(CUDA_ERROR_OUT_OF_MEMORY);
#undef SOFTCUDA_NAME
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  const CUresult known = cuGetErrorName(error, text);
  if (known == CUDA_SUCCESS) *text = "softcuda";
  return known;
}
