// The only function that the library exports: all others are found through it, as Tide does. The
// double is a driver of CUDA 13.0 that has no multicast.
#include <cstring>

#include "shim/device/cuda/driver.h"
#include "tests/softcuda/driver.h"

namespace {

constexpr int kVersion = 13000;

// cuMemcpyBatchAsync as of CUDA 13.0.
CUresult copy_batch(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                    CUmemcpyAttributes* attributes, size_t* first_with_attributes,
                    size_t attributes_count, CUstream stream) {
  if (stream == nullptr) return CUDA_ERROR_INVALID_VALUE;  // the driver wants a stream with a name
  if (count == 0 || attributes_count != 1 || first_with_attributes[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) {
    return tide::softcuda::refuse("a batch of copies that reads its sources out of order");
  }
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = cuMemcpyAsync(to[i], from[i], bytes[i], stream);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

struct Function {
  const char* name;
  void* address;
  int since;
};

const Function kFunctions[] = {
#define SOFTCUDA_FUNCTION(NAME) {#NAME, reinterpret_cast<void*>(&::NAME), 12000},
    TIDE_DRIVER_FUNCTIONS(SOFTCUDA_FUNCTION)
#undef SOFTCUDA_FUNCTION
        {"cuMemcpyBatchAsync", reinterpret_cast<void*>(&copy_batch), 13000},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(
    const char* name, void** found, int version, cuuint64_t, CUdriverProcAddressQueryResult*) {
  *found = nullptr;
  if (version > kVersion) return CUDA_ERROR_INVALID_VALUE;
  for (const Function& function : kFunctions) {
    if (std::strcmp(function.name, name) != 0 || version < function.since) continue;
    *found = function.address;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
