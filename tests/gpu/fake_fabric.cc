// Objects with owners; handles, mappings and bindings are references to them.
#include "tests/gpu/fake_fabric.h"

#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>

namespace tide::test::fabric {
namespace {

struct Object {
  uint64_t id = 0;
  size_t bytes = 0;
  int device = kMulticast;      // of memory
  void* contents = MAP_FAILED;  // of memory
  unsigned devices_wanted = 0;
  std::set<int> devices;
  std::map<int, std::shared_ptr<Object>> bound;  // by device

  ~Object() {
    if (contents != MAP_FAILED) munmap(contents, bytes);
  }
};

struct Range {
  size_t bytes = 0;
  size_t alignment = 0;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  int ranks = 0;
  std::vector<Fault> faults;
  std::vector<bool> multicast;
  std::vector<int> bus;
  bool released = false;
  uint64_t next = 1;
  std::map<uint64_t, std::weak_ptr<Object>> objects;  // by id, for imports
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Object>> handles;
  std::map<CUdeviceptr, Range> reserved;
  std::map<CUdeviceptr, std::shared_ptr<Object>> mapped;
  std::map<std::pair<std::string, int>, int> calls;
  std::ostringstream broken;
};

// Never destroyed: a thread that hung may come back late.
State& state() {
  static State* current = new State;
  return *current;
}

thread_local std::vector<int> contexts;

void rule(bool kept, const std::string& what) {
  if (!kept) state().broken << what << "; ";
}

// Counts the call of the rank whose context is current; the result of a fault. With the mutex.
CUresult enter(const std::string& call, std::unique_lock<std::mutex>& lock) {
  State& s = state();
  if (contexts.empty()) {
    rule(false, call + " without a context");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const int rank = contexts.back();
  const int count = ++s.calls[{call, rank}];
  for (const Fault& fault : s.faults) {
    if (fault.call != call || fault.rank != rank) continue;
    if (fault.times >= 0 && count > fault.times) continue;
    if (!fault.hang) return fault.result;
    s.changed.wait(lock, [&s] { return s.released; });
  }
  return CUDA_SUCCESS;
}

std::shared_ptr<Object> find(CUmemGenericAllocationHandle handle, const std::string& call) {
  const auto found = state().handles.find(handle);
  rule(found != state().handles.end(), call + " with a handle that is none");
  if (found == state().handles.end()) return nullptr;
  rule(static_cast<int>(handle >> 32) == contexts.back() + 1, call + " with a handle of a peer");
  return found->second;
}

CUmemGenericAllocationHandle handle_of(std::shared_ptr<Object> object) {
  const auto handle = (static_cast<uint64_t>(contexts.back()) + 1) << 32 | state().next++;
  state().handles[handle] = std::move(object);
  return handle;
}

std::shared_ptr<Object> make(size_t bytes) {
  auto object = std::make_shared<Object>();
  object->id = state().next++;
  object->bytes = bytes;
  state().objects[object->id] = object;
  return object;
}

#define TIDE_ENTER(NAME)                \
  std::unique_lock lock(state().mutex); \
  if (const CUresult refused = enter(NAME, lock); refused != CUDA_SUCCESS) return refused

CUresult push_current(CUcontext context) {
  contexts.push_back(static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1);
  return CUDA_SUCCESS;
}

CUresult pop_current(CUcontext*) {
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult error_name(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_SYSTEM_NOT_READY ? "CUDA_ERROR_SYSTEM_NOT_READY"
          : error == CUDA_ERROR_NOT_READY      ? "CUDA_ERROR_NOT_READY"
          : error == CUDA_ERROR_ILLEGAL_STATE  ? "CUDA_ERROR_ILLEGAL_STATE"
                                               : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}

CUresult error_text(CUresult, const char** text) {
  *text = "played";
  return CUDA_SUCCESS;
}

CUresult attribute(int* value, CUdevice_attribute which, CUdevice device) {
  const std::lock_guard lock(state().mutex);
  *value = which == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED ? state().multicast.at(device)
           : which == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID        ? state().bus.at(device)
                                                            : 0;
  return CUDA_SUCCESS;
}

CUresult memory_granularity(size_t* granularity, const CUmemAllocationProp*,
                            CUmemAllocationGranularity_flags) {
  TIDE_ENTER("cuMemGetAllocationGranularity");
  *granularity = kMemoryGranularity;
  return CUDA_SUCCESS;
}

CUresult memory_create(CUmemGenericAllocationHandle* handle, size_t bytes,
                       const CUmemAllocationProp* properties, unsigned long long) {
  TIDE_ENTER("cuMemCreate");
  rule(bytes > 0 && bytes % kMemoryGranularity == 0, "memory of an odd size");
  rule(properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
       "memory that cannot be shared");
  rule(properties->location.id == contexts.back(), "memory on the GPU of a peer");
  auto object = make(bytes);
  object->device = properties->location.id;
  object->contents =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (object->contents == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = handle_of(std::move(object));
  return CUDA_SUCCESS;
}

CUresult release_handle(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(state().mutex);
  rule(state().handles.erase(handle) == 1, "a handle is released that is none");
  return CUDA_SUCCESS;
}

CUresult export_handle(void* fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                       unsigned long long) {
  TIDE_ENTER("cuMemExportToShareableHandle");
  const auto object = find(handle, "an export");
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int file = memfd_create("tide-fake", MFD_CLOEXEC);
  if (write(file, &object->id, sizeof object->id) != sizeof object->id) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int*>(fd) = file;
  return CUDA_SUCCESS;
}

CUresult import_handle(CUmemGenericAllocationHandle* handle, void* fd, CUmemAllocationHandleType) {
  TIDE_ENTER("cuMemImportFromShareableHandle");
  uint64_t id = 0;
  const int file = static_cast<int>(reinterpret_cast<uintptr_t>(fd));
  if (pread(file, &id, sizeof id, 0) != sizeof id) return CUDA_ERROR_INVALID_VALUE;
  auto object = state().objects[id].lock();
  rule(object != nullptr, "an import of what is gone");
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = handle_of(std::move(object));
  return CUDA_SUCCESS;
}

CUresult reserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                 unsigned long long) {
  TIDE_ENTER("cuMemAddressReserve");
  rule(bytes > 0 && bytes % kMemoryGranularity == 0, "addresses off the granularity");
  void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (range == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(range);
  state().reserved[*address] = {bytes, alignment};
  return CUDA_SUCCESS;
}

CUresult free_address(CUdeviceptr address, size_t bytes) {
  TIDE_ENTER("cuMemAddressFree");
  rule(!state().mapped.contains(address), "addresses are freed that are mapped");
  const auto found = state().reserved.find(address);
  rule(found != state().reserved.end() && found->second.bytes == bytes,
       "addresses are freed twice");
  state().reserved.erase(address);
  munmap(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}

CUresult map_memory(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long) {
  TIDE_ENTER("cuMemMap");
  const auto object = find(handle, "a mapping");
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  rule(object->devices.size() == object->devices_wanted, "a mapping that blocks");
  rule(state().reserved.contains(address) && offset == 0 && bytes == object->bytes,
       "a mapping of something else");
  if (object->device == kMulticast) {
    rule(state().reserved[address].alignment % kMulticastGranularity == 0 &&
             state().reserved[address].alignment > 0,
         "a multicast mapping off the granularity");
  } else if (mremap(object->contents, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                    reinterpret_cast<void*>(address)) == MAP_FAILED) {
    // An old size of 0: a second mapping of the same pages.
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  state().mapped[address] = object;
  return CUDA_SUCCESS;
}

CUresult unmap(CUdeviceptr address, size_t bytes) {
  TIDE_ENTER("cuMemUnmap");
  rule(state().mapped.erase(address) == 1, "what is not mapped is unmapped");
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
       -1, 0);
  return CUDA_SUCCESS;
}

CUresult set_access(CUdeviceptr address, size_t, const CUmemAccessDesc* access, size_t count) {
  TIDE_ENTER("cuMemSetAccess");
  rule(state().mapped.contains(address), "access to what is not mapped");
  rule(count == 1 && access->location.id == contexts.back(), "access for another GPU");
  return CUDA_SUCCESS;
}

CUresult multicast_granularity(size_t* granularity, const CUmulticastObjectProp* properties,
                               CUmulticastGranularity_flags) {
  TIDE_ENTER("cuMulticastGetGranularity");
  rule(properties->numDevices == static_cast<unsigned>(state().ranks), "a number of GPUs");
  *granularity = kMulticastGranularity;
  return CUDA_SUCCESS;
}

CUresult multicast_create(CUmemGenericAllocationHandle* handle,
                          const CUmulticastObjectProp* properties) {
  TIDE_ENTER("cuMulticastCreate");
  rule(properties->size % kMulticastGranularity == 0, "a multicast object of an odd size");
  rule(properties->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
       "a multicast object that cannot be shared");
  auto object = make(properties->size);
  object->devices_wanted = properties->numDevices;
  *handle = handle_of(std::move(object));
  return CUDA_SUCCESS;
}

CUresult add_device(CUmemGenericAllocationHandle handle, CUdevice device) {
  TIDE_ENTER("cuMulticastAddDevice");
  const auto object = find(handle, "an addition");
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  rule(device == contexts.back(), "the GPU of a peer is added");
  rule(object->devices.insert(device).second, "a GPU is added twice");
  return CUDA_SUCCESS;
}

CUresult bind_memory(CUmemGenericAllocationHandle handle, size_t offset,
                     CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                     unsigned long long) {
  TIDE_ENTER("cuMulticastBindMem");
  const auto object = find(handle, "a binding");
  const auto bound = find(memory, "a binding");
  if (object == nullptr || bound == nullptr) return CUDA_ERROR_INVALID_VALUE;
  rule(object->devices.size() == object->devices_wanted, "a binding that blocks");
  rule(offset == 0 && memory_offset == 0 && bytes == object->bytes && bytes == bound->bytes,
       "a binding of something else");
  rule(object->bound.emplace(bound->device, bound).second, "a GPU is bound twice");
  return CUDA_SUCCESS;
}

CUresult unbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t bytes) {
  TIDE_ENTER("cuMulticastUnbind");
  const auto object = find(handle, "an unbinding");
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  rule(offset == 0 && bytes == object->bytes && object->bound.erase(device) == 1,
       "what is not bound is unbound");
  return CUDA_SUCCESS;
}

}  // namespace

void reset(int ranks, std::vector<Fault> faults) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.ranks = ranks;
  s.faults = std::move(faults);
  s.multicast.assign(ranks, true);
  s.bus.clear();
  for (int q = 0; q < ranks; ++q) s.bus.push_back(0x10 + q);
  s.released = false;
  s.objects.clear();
  s.handles.clear();
  s.reserved.clear();
  s.mapped.clear();
  s.calls.clear();
  s.broken.str("");
}

void set_multicast(int device, bool supported) { state().multicast.at(device) = supported; }
void set_bus(int device, int bus) { state().bus.at(device) = bus; }

void release() {
  {
    const std::lock_guard lock(state().mutex);
    state().released = true;
  }
  state().changed.notify_all();
}

const device::cuda::Driver& driver() {
  static const device::cuda::Driver* const fake = [] {
    auto* d = new device::cuda::Driver;
    d->cuCtxPushCurrent = push_current;
    d->cuCtxPopCurrent = pop_current;
    d->cuGetErrorName = error_name;
    d->cuGetErrorString = error_text;
    d->cuDeviceGetAttribute = attribute;
    d->cuMemGetAllocationGranularity = memory_granularity;
    d->cuMemCreate = memory_create;
    d->cuMemRelease = release_handle;
    d->cuMemExportToShareableHandle = export_handle;
    d->cuMemImportFromShareableHandle = import_handle;
    d->cuMemAddressReserve = reserve;
    d->cuMemAddressFree = free_address;
    d->cuMemMap = map_memory;
    d->cuMemUnmap = unmap;
    d->cuMemSetAccess = set_access;
    d->cuMulticastGetGranularity = multicast_granularity;
    d->cuMulticastCreate = multicast_create;
    d->cuMulticastAddDevice = add_device;
    d->cuMulticastBindMem = bind_memory;
    d->cuMulticastUnbind = unbind;
    return d;
  }();
  return *fake;
}

CUcontext context(int rank) {
  return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(rank) + 1);
}

std::string held() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  std::ostringstream text;
  if (!s.handles.empty()) text << s.handles.size() << " handles ";
  if (!s.reserved.empty()) text << s.reserved.size() << " address ranges ";
  if (!s.mapped.empty()) text << s.mapped.size() << " mappings ";
  for (const auto& [id, object] : s.objects) {
    if (!object.expired()) text << "object " << id << " ";
  }
  return text.str();
}

std::string broken_rules() {
  const std::lock_guard lock(state().mutex);
  return state().broken.str();
}

int calls(const std::string& call, int rank) {
  const std::lock_guard lock(state().mutex);
  return state().calls[{call, rank}];
}

void break_rule(const std::string& what) {
  const std::lock_guard lock(state().mutex);
  rule(false, what);
}

int current_rank() {
  if (contexts.empty()) break_rule("a call without a context");
  return contexts.empty() ? kHost : contexts.back();
}

namespace {

// The mapping that `address` lies in; with the mutex.
std::map<CUdeviceptr, std::shared_ptr<Object>>::iterator mapping_at(CUdeviceptr address) {
  auto& mapped = state().mapped;
  auto found = mapped.upper_bound(address);
  if (found == mapped.begin()) return mapped.end();
  --found;
  return address - found->first < found->second->bytes ? found : mapped.end();
}

}  // namespace

int gpu_at(CUdeviceptr address) {
  const std::lock_guard lock(state().mutex);
  const auto found = mapping_at(address);
  return found == state().mapped.end() ? kHost : found->second->device;
}

std::vector<std::byte*> behind(CUdeviceptr address) {
  const std::lock_guard lock(state().mutex);
  const auto found = mapping_at(address);
  if (found == state().mapped.end()) return {};
  std::vector<std::byte*> places;
  for (const auto& [device, memory] : found->second->bound) {
    places.push_back(static_cast<std::byte*>(memory->contents) + (address - found->first));
  }
  return places;
}

size_t bound_everywhere(CUdeviceptr address) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().mapped.find(address);
  if (found == state().mapped.end()) return 0;
  return found->second->bound.size() == found->second->devices_wanted ? found->second->bytes : 0;
}

}  // namespace tide::test::fabric
