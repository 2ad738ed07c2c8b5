// GPU memory that the ranks of a node share: created here, exported as a descriptor, mapped by the
// peers. And host memory that streams can read and write.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "shim/device/cuda/context.h"
#include "shim/device/host/memory.h"

namespace tide::device::cuda {

// GPU memory mapped for this rank's GPU, its own or a peer's. The memory itself lives until no rank
// maps it.
class DeviceMapping {
 public:
  // New memory; `bytes` is rounded up to the driver's granularity (2 MiB). The context is current.
  // Where memory is short, make_room (may be empty) is called and the driver asked once more.
  // Throws tide::Error.
  static DeviceMapping create(std::shared_ptr<Context> context, uint64_t bytes,
                              const std::function<void()>& make_room);
  // A peer's, of `bytes` bytes as its own bytes() says. Throws tide::Error.
  static DeviceMapping import(std::shared_ptr<Context> context, int fd, uint64_t bytes);

  DeviceMapping(DeviceMapping&& other) noexcept;
  DeviceMapping& operator=(DeviceMapping&&) = delete;
  ~DeviceMapping();

  CUdeviceptr address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  // A descriptor of the memory, to be sent to a peer. Throws tide::Error.
  host::Descriptor share() const;

 private:
  DeviceMapping(std::shared_ptr<Context> context, CUmemGenericAllocationHandle handle,
                uint64_t bytes);

  std::shared_ptr<Context> context_;
  CUmemGenericAllocationHandle handle_ = 0;
  uint64_t bytes_ = 0;
  CUdeviceptr address_ = 0;
};

// Registers a host mapping with the driver: stream memory operations and copies reach it at
// address(). Throws tide::Error.
class PinnedMapping {
 public:
  PinnedMapping(std::shared_ptr<Context> context, std::shared_ptr<host::Mapping> memory);
  PinnedMapping(PinnedMapping&& other) noexcept;
  PinnedMapping& operator=(PinnedMapping&&) = delete;
  ~PinnedMapping();

  CUdeviceptr address() const { return address_; }

 private:
  std::shared_ptr<Context> context_;
  std::shared_ptr<host::Mapping> memory_;
  CUdeviceptr address_ = 0;
};

}  // namespace tide::device::cuda
