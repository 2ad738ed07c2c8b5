// Descriptors travel over the bootstrap's sockets, in the order of the segments' numbers.
#include "shim/device/cuda/segments.h"

#include <cerrno>
#include <cstring>
#include <span>
#include <string>

#include "include/tide/error.h"

namespace tide::device::cuda {
namespace {

// torch's caching allocator takes memory from the driver in blocks of 20 MiB and more for tensors
// over 1 MiB (c10/cuda/CUDACachingAllocator, kLargeBuffer): less is not worth its wait.
constexpr uint64_t kWorthRoom = uint64_t{20} << 20;

struct Message {
  uint64_t number;
  uint64_t bytes;
};

}  // namespace

uint32_t Segments::add(uint64_t bytes) {
  // What the first iteration, which ran stock, left in the allocator would be held beside the slots
  // that replace it.
  if (bytes >= kWorthRoom && make_room_) make_room_();
  return add(DeviceMapping::create(context_, bytes, make_room_));
}

uint32_t Segments::add(DeviceMapping made) {
  const std::lock_guard lock(mutex_);
  std::vector<DeviceMapping>& own = all_[lookout_.rank()];
  const host::Descriptor fd = made.share();
  const Message message{own.size() + 1, made.bytes()};
  for (int q = 0; q < lookout_.size(); ++q) {
    if (q == lookout_.rank()) continue;
    if (lookout_.peer(q).socket.send(std::as_bytes(std::span(&message, 1)), fd.get())) continue;
    // The exchange that needs the peer will name it.
    if (errno == EPIPE || errno == ECONNRESET) continue;
    throw Error("cannot hand landing memory to " + lookout_.name(q) + ": " + std::strerror(errno));
  }
  own.push_back(std::move(made));
  return static_cast<uint32_t>(own.size());
}

CUdeviceptr Segments::reach(int rank, const Place& place) {
  const std::lock_guard lock(mutex_);
  std::vector<DeviceMapping>& known = all_[rank];
  while (known.size() < place.segment) {
    // It was sent before the choice was published, so it is here.
    Message message{};
    const auto fd =
        lookout_.peer(rank).socket.receive(std::as_writable_bytes(std::span(&message, 1)));
    if (!fd) {
      throw Error("no descriptor of segment " + std::to_string(known.size() + 1) + " came from " +
                      lookout_.name(rank),
                  "a limit of open files may be reached: ulimit -n");
    }
    if (message.number != known.size() + 1) {
      throw Error(lookout_.name(rank) + " sent segment " + std::to_string(message.number) +
                  " of its landing memory in place of " + std::to_string(known.size() + 1));
    }
    try {
      known.push_back(DeviceMapping::import(context_, fd->get(), message.bytes));
    } catch (const Error& error) {
      throw Error("cannot map the memory of " + lookout_.name(rank) + ": " + error.what());
    }
  }
  const DeviceMapping& segment = known[place.segment - 1];
  if (place.offset > segment.bytes() || place.bytes > segment.bytes() - place.offset) {
    throw Error(lookout_.name(rank) + " grants " + std::to_string(place.bytes) + " bytes at " +
                std::to_string(place.offset) + " of a segment of " +
                std::to_string(segment.bytes()));
  }
  return segment.address() + place.offset;
}

uint64_t Segments::bytes(uint32_t segment) const {
  const std::lock_guard lock(mutex_);
  return all_[lookout_.rank()][segment - 1].bytes();
}

CUdeviceptr Segments::address(uint32_t segment) const {
  const std::lock_guard lock(mutex_);
  return all_[lookout_.rank()][segment - 1].address();
}

}  // namespace tide::device::cuda
