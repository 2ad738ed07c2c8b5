// Device memory: an allocation is a memfd and its handle the descriptor, an address range is a
// reserved mapping. Host memory is registered at its own address; the same memory only once, as the
// driver has it, unless SOFTCUDA_THREADS=1 says that the ranks of a test are threads of one
// process.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "tests/softcuda/driver.h"

namespace tide::softcuda {
namespace {

constexpr size_t kGranularity = 2 << 20;
// A handle is the descriptor plus this, so that the two are not mixed up.
constexpr CUmemGenericAllocationHandle kHandles = CUmemGenericAllocationHandle{1} << 32;

struct Range {
  size_t bytes = 0;
  bool mapped = false;      // cuMemMap
  bool accessible = false;  // cuMemSetAccess, or registered
  int registered = 0;       // times
};

// By where they begin.
struct Ranges {
  std::mutex mutex;
  std::map<CUdeviceptr, Range> device;
  std::map<CUdeviceptr, Range> host;
};

Ranges& ranges() {
  static auto* const all = new Ranges();
  return *all;
}

bool inside(const std::map<CUdeviceptr, Range>& all, CUdeviceptr address, size_t bytes) {
  auto range = all.upper_bound(address);
  if (range == all.begin()) return false;
  --range;
  return range->second.accessible && address - range->first <= range->second.bytes &&
         bytes <= range->second.bytes - (address - range->first);
}

// Null unless exactly this range was reserved. The caller holds the mutex.
Range* reserved(CUdeviceptr address, size_t bytes) {
  const auto found = ranges().device.find(address);
  return found == ranges().device.end() || found->second.bytes != bytes ? nullptr : &found->second;
}

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace

bool reaches(CUdeviceptr address, size_t bytes) {
  const std::lock_guard lock(ranges().mutex);
  return inside(ranges().device, address, bytes) || inside(ranges().host, address, bytes);
}

}  // namespace tide::softcuda

using namespace tide::softcuda;

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *granularity = kGranularity;
  return started();
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  if (started() != CUDA_SUCCESS) return started();
  if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return refuse("memory that is not a GPU's own or not shared by descriptor");
  }
  if (flags != 0 || bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const int fd = memfd_create("softcuda", MFD_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = kHandles + static_cast<unsigned>(fd);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (started() != CUDA_SUCCESS) return started();
  const bool closed = handle >= kHandles && close(static_cast<int>(handle - kHandles)) == 0;
  return closed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  if (started() != CUDA_SUCCESS) return started();
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return refuse("memory as no descriptor");
  if (flags != 0 || handle < kHandles) return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(static_cast<int>(handle - kHandles), F_DUPFD_CLOEXEC, 0);
  *static_cast<int*>(shareable) = fd;
  return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  if (started() != CUDA_SUCCESS) return started();
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return refuse("memory as no descriptor");
  const int fd = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(shareable)), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = kHandles + static_cast<unsigned>(fd);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  if (started() != CUDA_SUCCESS) return started();
  if (flags != 0 || bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  if (alignment != 0) return refuse("an address range with an alignment");
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(at);
  const std::lock_guard lock(ranges().mutex);
  ranges().device[*address] = {
      .bytes = bytes, .mapped = false, .accessible = false, .registered = 0};
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  if (started() != CUDA_SUCCESS) return started();
  const std::lock_guard lock(ranges().mutex);
  const Range* range = reserved(address, bytes);
  if (range == nullptr || range->mapped) return CUDA_ERROR_INVALID_VALUE;
  ranges().device.erase(address);
  munmap(pointer(address), bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (started() != CUDA_SUCCESS) return started();
  if (flags != 0 || handle < kHandles) return CUDA_ERROR_INVALID_VALUE;
  if (offset != 0) return refuse("part of an allocation, mapped");
  const int fd = static_cast<int>(handle - kHandles);
  struct stat file {};
  const std::lock_guard lock(ranges().mutex);
  Range* range = reserved(address, bytes);
  if (range == nullptr || range->mapped || fstat(fd, &file) != 0 ||
      static_cast<size_t>(file.st_size) != bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  range->mapped = true;
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                        size_t count) {
  if (started() != CUDA_SUCCESS) return started();
  if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return refuse("access that is not one GPU's reads and writes");
  }
  const std::lock_guard lock(ranges().mutex);
  Range* range = reserved(address, bytes);
  if (range == nullptr || !range->mapped) return CUDA_ERROR_INVALID_VALUE;
  if (mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  range->accessible = true;
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  if (started() != CUDA_SUCCESS) return started();
  const std::lock_guard lock(ranges().mutex);
  Range* range = reserved(address, bytes);
  if (range == nullptr || !range->mapped) return CUDA_ERROR_INVALID_VALUE;
  mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
  range->mapped = range->accessible = false;
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void* memory, size_t bytes, unsigned) {
  if (ready() != CUDA_SUCCESS) return ready();
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  const std::lock_guard lock(ranges().mutex);
  auto& host = ranges().host;
  const char* threads = std::getenv("SOFTCUDA_THREADS");
  if (const auto same = host.find(address); same != host.end() && same->second.bytes == bytes &&
                                            threads != nullptr && threads[0] == '1') {
    ++same->second.registered;
    return CUDA_SUCCESS;
  }
  const auto next = host.upper_bound(address);
  if ((next != host.end() && next->first < address + bytes) ||
      (next != host.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  host[address] = {.bytes = bytes, .mapped = false, .accessible = true, .registered = 1};
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* address, void* memory, unsigned flags) {
  if (ready() != CUDA_SUCCESS) return ready();
  *address = reinterpret_cast<CUdeviceptr>(memory);
  const std::lock_guard lock(ranges().mutex);
  return flags == 0 && inside(ranges().host, *address, 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostUnregister(void* memory) {
  if (ready() != CUDA_SUCCESS) return ready();
  const std::lock_guard lock(ranges().mutex);
  const auto found = ranges().host.find(reinterpret_cast<CUdeviceptr>(memory));
  if (found == ranges().host.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  if (--found->second.registered == 0) ranges().host.erase(found);
  return CUDA_SUCCESS;
}
