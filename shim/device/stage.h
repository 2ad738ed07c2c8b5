// How collectives between nodes reach memory that rails cannot register: through a mirror in host
// memory, in the order of a stream that belongs to the thread which carries the collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tide::device {

// Of one team and one carrying thread. mark() is the callers', all else the carrier's. Throw
// tide::Error when the device refuses.
class Stage {
 public:
  virtual ~Stage() = default;

  // Host memory of at least `bytes` that copy() reaches; the same until more is asked for. None of
  // it is freed before the stage: it may be registered with a NIC.
  virtual std::span<std::byte> host(uint64_t bytes) = 0;

  // What the caller's current stream holds now.
  virtual std::shared_ptr<void> mark() = 0;
  // From here on the carrier's copies, and the exchanges that it starts and waits for, are in the
  // order of a stream of the stage, behind `mark`.
  virtual void enter(const std::shared_ptr<void>& mark) = 0;
  // Between the mirror and memory of the device, in that order.
  virtual void copy(void* to, const void* from, uint64_t bytes) = 0;
  // Blocks the carrier until all of that is done, or at most the team's timeout. After a failure of
  // the team it may be done without having its result: ask the Pendings again.
  virtual void finish() = 0;
};

}  // namespace tide::device
