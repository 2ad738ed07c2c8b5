// The landing memory of a team: segments of GPU memory that each rank makes for itself, and those
// of its peers, mapped when a peer's choice names one for the first time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "shim/device/cuda/lookout.h"
#include "shim/device/cuda/memory.h"
#include "shim/device/cuda/slot_heap.h"

namespace tide::device::cuda {

// Thread-safe.
class Segments {
 public:
  // make_room: asks the job's allocator to give back what it does not use; may be empty. Called
  // before every large segment, and when the GPU is full.
  Segments(std::shared_ptr<Context> context, const Lookout& lookout,
           std::function<void()> make_room)
      : context_(std::move(context)),
        lookout_(lookout),
        make_room_(std::move(make_room)),
        all_(lookout.size()) {}

  // A new segment of this rank, of at least `bytes`, the next number from 1 on. Its descriptor is
  // on its way to all peers when this returns, so a choice that names the segment may be published.
  // Does not wait for peers. The context is current. Throws tide::Error.
  uint32_t add(uint64_t bytes);
  // The same with memory that was made elsewhere.
  uint32_t add(DeviceMapping made);
  // Where this rank's GPU reaches `place` of rank `rank`, which must have published it. Maps what
  // is not mapped yet. The context is current. Throws tide::Error.
  CUdeviceptr reach(int rank, const Place& place);

  // Of this rank.
  uint64_t bytes(uint32_t segment) const;
  CUdeviceptr address(uint32_t segment) const;

 private:
  const std::shared_ptr<Context> context_;
  const Lookout& lookout_;
  const std::function<void()> make_room_;
  mutable std::mutex mutex_;
  std::vector<std::vector<DeviceMapping>> all_;  // by rank, then number
};

}  // namespace tide::device::cuda
