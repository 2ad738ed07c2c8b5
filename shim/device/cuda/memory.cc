// cuMemCreate, cuMemMap, cuMemHostRegister.
#include "shim/device/cuda/memory.h"

#include <string>
#include <utility>

#include "shim/device/cuda/driver.h"

namespace tide::device::cuda {
namespace {

CUmemLocation location_of(const Context& context) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = context.device();
  return location;
}

}  // namespace

DeviceMapping::DeviceMapping(std::shared_ptr<Context> context, CUmemGenericAllocationHandle handle,
                             uint64_t bytes)
    : context_(std::move(context)), handle_(handle), bytes_(bytes) {
  const std::string size = std::to_string(bytes) + " bytes of GPU memory";
  CUdeviceptr address = 0;
  CUresult result = driver().cuMemAddressReserve(&address, bytes, /*alignment=*/0, 0, /*flags=*/0);
  if (result == CUDA_SUCCESS) {
    result = driver().cuMemMap(address, bytes, /*offset=*/0, handle, /*flags=*/0);
    if (result != CUDA_SUCCESS) driver().cuMemAddressFree(address, bytes);
  }
  if (result != CUDA_SUCCESS) {
    driver().cuMemRelease(handle);
    check(result, "map " + size);
  }
  CUmemAccessDesc access{};
  access.location = location_of(*context_);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  result = driver().cuMemSetAccess(address, bytes, &access, 1);
  if (result != CUDA_SUCCESS) {
    driver().cuMemUnmap(address, bytes);
    driver().cuMemAddressFree(address, bytes);
    driver().cuMemRelease(handle);
    check(result, "give GPU " + std::to_string(context_->ordinal()) + " access to " + size,
          "the GPUs of a team must have peer access to each other");
  }
  address_ = address;
}

DeviceMapping::DeviceMapping(DeviceMapping&& other) noexcept
    : context_(std::move(other.context_)),
      handle_(other.handle_),
      bytes_(other.bytes_),
      address_(std::exchange(other.address_, 0)) {}

DeviceMapping::~DeviceMapping() {
  if (address_ == 0) return;
  const Current current(*context_);
  driver().cuMemUnmap(address_, bytes_);
  driver().cuMemAddressFree(address_, bytes_);
  driver().cuMemRelease(handle_);
}

DeviceMapping DeviceMapping::create(std::shared_ptr<Context> context, uint64_t bytes,
                                    const std::function<void()>& make_room) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = location_of(*context);
  size_t granularity = 0;
  check(driver().cuMemGetAllocationGranularity(&granularity, &properties,
                                               CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "ask for the granularity of GPU memory");
  bytes = (bytes + granularity - 1) / granularity * granularity;
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver().cuMemCreate(&handle, bytes, &properties, /*flags=*/0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && make_room) {
    make_room();
    result = driver().cuMemCreate(&handle, bytes, &properties, /*flags=*/0);
  }
  check(result, "make " + std::to_string(bytes) + " bytes of GPU memory for landing slots",
        "smaller FSDP groups need smaller slots");
  return {std::move(context), handle, bytes};
}

DeviceMapping DeviceMapping::import(std::shared_ptr<Context> context, int fd, uint64_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  check(driver().cuMemImportFromShareableHandle(&handle,
                                                reinterpret_cast<void*>(static_cast<uintptr_t>(fd)),
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "open the GPU memory of a peer", "every rank must see the GPUs of all ranks of its node");
  return {std::move(context), handle, bytes};
}

host::Descriptor DeviceMapping::share() const {
  int fd = -1;
  check(
      driver().cuMemExportToShareableHandle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            /*flags=*/0),
      "share GPU memory");
  return host::Descriptor(fd);
}

PinnedMapping::PinnedMapping(std::shared_ptr<Context> context,
                             std::shared_ptr<host::Mapping> memory)
    : context_(std::move(context)), memory_(std::move(memory)) {
  check(driver().cuMemHostRegister(memory_->data(), memory_->bytes(),
                                   CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
        "register shared memory with the CUDA driver",
        "each rank of a CUDA team must be a process of its own");
  const CUresult result = driver().cuMemHostGetDevicePointer(&address_, memory_->data(), 0);
  if (result != CUDA_SUCCESS) driver().cuMemHostUnregister(memory_->data());
  check(result, "map shared memory for the GPU");
}

PinnedMapping::PinnedMapping(PinnedMapping&& other) noexcept
    : context_(std::move(other.context_)),
      memory_(std::move(other.memory_)),
      address_(other.address_) {}

PinnedMapping::~PinnedMapping() {
  if (memory_ == nullptr) return;
  const Current current(*context_);
  driver().cuMemHostUnregister(memory_->data());
}

}  // namespace tide::device::cuda
