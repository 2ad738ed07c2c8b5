#include "plugin/tuner/device.h"

#include <dlfcn.h>

namespace tide::tuner {

// The driver's functions as in cuda.h; our library is not linked with CUDA.
int multiprocessors() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return 0;
  const auto current = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuCtxGetDevice"));
  const auto attribute =
      reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  constexpr int kMultiprocessorCount = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
  int device = 0, count = 0;
  const bool known = current != nullptr && attribute != nullptr && current(&device) == 0 &&
                     attribute(&count, kMultiprocessorCount, device) == 0;
  dlclose(driver);
  return known ? count : 0;
}

}  // namespace tide::tuner
