// dlopen and cuGetProcAddress.
#include "shim/device/cuda/driver.h"

#include <dlfcn.h>

#include <optional>

#include "include/tide/error.h"

namespace tide::device::cuda {
namespace {

constexpr int kOldest = 12000;  // CUDA 12.0
constexpr int kMulticast = 12010;
constexpr int kBatchCopy = 13000;  // cuMemcpyBatchAsync without the index of a failed copy

struct Loaded {
  Driver driver;
  std::string error;
};

Loaded load() {
  Loaded loaded;
  // Never closed: streams and deleters live until the process ends.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.error = std::string("no CUDA driver: ") + dlerror();
    return loaded;
  }
  using Lookup =
      CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  auto lookup = reinterpret_cast<Lookup>(dlsym(library, "cuGetProcAddress_v2"));
  if (lookup == nullptr) {
    loaded.error = "the CUDA driver is older than CUDA 12.0";
    return loaded;
  }
  auto find = [&](const char* name, int version) {
    void* found = nullptr;
    const CUresult result =
        lookup(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, /*symbolStatus=*/nullptr);
    return result == CUDA_SUCCESS ? found : nullptr;
  };
#define TIDE_FIND(NAME)                                                           \
  loaded.driver.NAME = reinterpret_cast<decltype(&::NAME)>(find(#NAME, kOldest)); \
  if (loaded.driver.NAME == nullptr) loaded.error = "the CUDA driver lacks " #NAME;
  TIDE_DRIVER_FUNCTIONS(TIDE_FIND)
#undef TIDE_FIND
#define TIDE_FIND(NAME) \
  loaded.driver.NAME = reinterpret_cast<decltype(&::NAME)>(find(#NAME, kMulticast));
  TIDE_MULTICAST_FUNCTIONS(TIDE_FIND)
#undef TIDE_FIND
  loaded.driver.copy_batch =
      reinterpret_cast<decltype(loaded.driver.copy_batch)>(find("cuMemcpyBatchAsync", kBatchCopy));
  if (!loaded.error.empty()) return loaded;
  const CUresult started = loaded.driver.cuInit(0);
  if (started != CUDA_SUCCESS) {
    const char* name = nullptr;
    loaded.driver.cuGetErrorName(started, &name);
    loaded.error = std::string("the CUDA driver does not start: ") + (name ? name : "?");
  }
  return loaded;
}

const Loaded& loaded() {
  static const Loaded* const instance =
      new Loaded(load());  // deleters run after static destruction
  return *instance;
}

}  // namespace

const Driver& driver() {
  const Loaded& all = loaded();
  if (!all.error.empty()) throw Error(all.error, "install NVIDIA's driver for CUDA 12.0 or later");
  return all.driver;
}

std::string text_of(CUresult result) { return text_of(driver(), result); }

std::string text_of(const Driver& driver, CUresult result) {
  const char* name = nullptr;
  const char* meaning = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &meaning);
  if (name == nullptr) return "CUDA error " + std::to_string(result);
  return std::string(name) + " (" + (meaning ? meaning : "?") + ")";
}

void check(CUresult result, const std::string& what, const std::string& remedy) {
  if (result != CUDA_SUCCESS) throw Error("cannot " + what + ": " + text_of(result), remedy);
}

}  // namespace tide::device::cuda
