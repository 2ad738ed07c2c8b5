// The CUDA driver's word on its devices, through dlopen: attributes and peer access only. No
// context is made and no memory is taken.
#include <dlfcn.h>

#include "shim/cli/doctor_facts.h"

namespace tide::cli::doctor {
namespace {

// cuda.h, CUdevice_attribute.
enum Attribute {
  kMultiprocessorCount = 16,
  kPciBus = 33,
  kPciDevice = 34,
  kPciDomain = 50,
  kMajor = 75,
  kMinor = 76,
  kGpuDirectRdma = 116,
  kDmaBuf = 124,
  kMulticast = 132,
};

struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*version)(int*) = nullptr;
  int (*error_name)(int, const char**) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*device_name)(char*, int, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*can_access_peer)(int*, int, int) = nullptr;
};

template <typename Function>
bool find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

int attribute(const Driver& driver, int device, Attribute which) {
  int value = 0;
  return driver.attribute(&value, which, device) == 0 ? value : 0;
}

CudaDevice describe(const Driver& driver, int index, int count) {
  CudaDevice found;
  int device = 0;
  driver.device(&device, index);
  char name[128] = "", bus_id[16];
  driver.device_name(name, sizeof(name), device);
  snprintf(bus_id, sizeof(bus_id), "%04x:%02x:%02x.0",
           attribute(driver, device, kPciDomain) & 0xffff,
           attribute(driver, device, kPciBus) & 0xff, attribute(driver, device, kPciDevice) & 0xff);
  found.name = name;
  found.bus_id = bus_id;
  found.major = attribute(driver, device, kMajor);
  found.minor = attribute(driver, device, kMinor);
  found.multiprocessors = attribute(driver, device, kMultiprocessorCount);
  found.multicast = attribute(driver, device, kMulticast) != 0;
  found.dma_buf = attribute(driver, device, kDmaBuf) != 0;
  found.gpu_direct = attribute(driver, device, kGpuDirectRdma) != 0;
  for (int other = 0; other < count; ++other) {
    int peer = 0, can = 0;
    if (other != index && driver.device(&peer, other) == 0 &&
        driver.can_access_peer(&can, device, peer) == 0 && can != 0) {
      found.peers.push_back(other);
    }
  }
  return found;
}

}  // namespace

CudaFacts ask_cuda() {
  CudaFacts facts;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    facts.absent = true;
    facts.error = dlerror();
    return facts;
  }
  Driver driver;
  const bool complete = find(library, driver.init, "cuInit") &&
                        find(library, driver.version, "cuDriverGetVersion") &&
                        find(library, driver.error_name, "cuGetErrorName") &&
                        find(library, driver.device_count, "cuDeviceGetCount") &&
                        find(library, driver.device, "cuDeviceGet") &&
                        find(library, driver.device_name, "cuDeviceGetName") &&
                        find(library, driver.attribute, "cuDeviceGetAttribute") &&
                        find(library, driver.can_access_peer, "cuDeviceCanAccessPeer");
  if (!complete) {
    facts.error = "libcuda.so.1 is not NVIDIA's driver: functions are missing";
    return facts;
  }
  facts.error_code = driver.init(0);
  if (facts.error_code != 0) {
    const char* name = nullptr;
    driver.error_name(facts.error_code, &name);
    facts.error = std::string("cuInit: ") + (name != nullptr ? name : "unknown error") + " (" +
                  std::to_string(facts.error_code) + ")";
    return facts;
  }
  int count = 0;
  driver.version(&facts.version);
  driver.device_count(&count);
  for (int i = 0; i < count; ++i) facts.devices.push_back(describe(driver, i, count));
  return facts;
}

}  // namespace tide::cli::doctor
