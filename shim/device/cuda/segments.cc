// Descriptors travel over the bootstrap's sockets.
#include "shim/device/cuda/segments.h"

#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <thread>

#include "include/tide/error.h"

namespace tide::device::cuda {
namespace {

constexpr std::chrono::milliseconds kPause{1};

struct Message {
  uint32_t number;
  uint32_t reserved;
  uint64_t bytes;
};

}  // namespace

std::vector<host::Descriptor> trade(const Lookout& lookout, uint32_t number, uint64_t bytes,
                                    const host::Descriptor& mine,
                                    std::chrono::milliseconds timeout) {
  Message own{number, 0, bytes};
  for (int q = 0; q < lookout.size(); ++q) {
    if (q == lookout.rank()) continue;
    if (lookout.peer(q).socket.send(std::as_bytes(std::span(&own, 1)), mine.get())) continue;
    if (errno == EPIPE || errno == ECONNRESET) throw lookout.gone(q);
    throw lookout.local("cannot hand memory to " + lookout.name(q) + ": " + std::strerror(errno));
  }

  std::vector<host::Descriptor> all(lookout.size());
  const auto deadline = Clock::now() + timeout;
  for (int q = 0; q < lookout.size();) {
    if (q == lookout.rank()) {
      ++q;
      continue;
    }
    Message theirs{};
    // Before the receiving: what a peer sent before it died counts.
    const std::vector<int> dead = lookout.hung_up();
    auto fd = lookout.peer(q).socket.receive(std::as_writable_bytes(std::span(&theirs, 1)));
    if (fd) {
      if (theirs.number != number || theirs.bytes != bytes) {
        throw lookout.local("the ranks diverged: " + lookout.name(q) + " makes " +
                            std::to_string(theirs.bytes) + " bytes of memory number " +
                            std::to_string(theirs.number) + ", " + lookout.name(lookout.rank()) +
                            " makes " + std::to_string(bytes) + " bytes of number " +
                            std::to_string(number));
      }
      all[q++] = std::move(*fd);
      continue;
    }
    if (auto trouble = lookout.reported()) throw *trouble;
    for (int p : dead) {
      if (p == q) throw lookout.gone(p);
    }
    if (Clock::now() >= deadline) throw lookout.absent(q, timeout);
    std::this_thread::sleep_for(kPause);
  }
  return all;
}

uint32_t Segments::grow(uint64_t bytes, std::chrono::milliseconds timeout) {
  const uint32_t number = count() + 1;
  std::vector<DeviceMapping> mappings;
  DeviceMapping mine = DeviceMapping::create(context_, bytes);
  const uint64_t size = mine.bytes();
  const host::Descriptor fd = mine.share();
  const auto theirs = trade(lookout_, number, size, fd, timeout);
  mappings.reserve(lookout_.size());
  for (int q = 0; q < lookout_.size(); ++q) {
    if (q == lookout_.rank()) {
      mappings.push_back(std::move(mine));
      continue;
    }
    try {
      mappings.push_back(DeviceMapping::import(context_, theirs[q].get(), size));
    } catch (const Error& error) {
      throw lookout_.local("cannot map the memory of " + lookout_.name(q) + ": " + error.what());
    }
  }
  all_.push_back(std::move(mappings));
  return number;
}

}  // namespace tide::device::cuda
