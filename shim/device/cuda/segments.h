// The landing memory of a team: segments that every rank creates together with its peers and maps
// from all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "shim/device/cuda/lookout.h"
#include "shim/device/cuda/memory.h"

namespace tide::device::cuda {

// Sends `bytes` and a descriptor as message number `number` to all peers, takes theirs (empty for
// this rank itself). Collective. Throws Trouble: a peer that is gone, stays away until `deadline`,
// or is at another message.
std::vector<host::Descriptor> trade(const Lookout& lookout, uint32_t number, uint64_t bytes,
                                    const host::Descriptor& mine,
                                    std::chrono::milliseconds timeout);

class Segments {
 public:
  Segments(std::shared_ptr<Context> context, const Lookout& lookout)
      : context_(std::move(context)), lookout_(lookout) {}

  // Collective: a new segment of at least `bytes` on every rank, the next number from 1 on; blocks
  // until all peers have made theirs, at most `timeout`. Throws tide::Error or Trouble. Not
  // thread-safe with itself.
  uint32_t grow(uint64_t bytes, std::chrono::milliseconds timeout);

  uint64_t bytes(uint32_t segment) const { return all_[segment - 1][lookout_.rank()].bytes(); }
  // Where this rank's GPU reaches segment `segment` of rank `rank`.
  CUdeviceptr address(int rank, uint32_t segment) const {
    return all_[segment - 1][rank].address();
  }
  uint32_t count() const { return static_cast<uint32_t>(all_.size()); }

 private:
  const std::shared_ptr<Context> context_;
  const Lookout& lookout_;
  std::vector<std::vector<DeviceMapping>> all_;  // by number, then rank
};

}  // namespace tide::device::cuda
