// Memory of all GPUs of a node behind one address: what is written there, the NVSwitch writes at
// the same offset on every GPU. It is made once, by all ranks together, and never on a GPU of our
// tests: doc/multicast.md.
//
// The fabric manager takes part in the making and may be busy. So every step is taken by all ranks
// in lockstep, and all learn how it went on each: when one was refused for the time being, all give
// back what they have and begin anew, until the time is over; when one is refused for good, all go
// on without. No rank keeps multicast memory that another has not.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/lookout.h"
#include "shim/device/host/memory.h"

namespace tide::device {
class Rendezvous;
}

namespace tide::device::cuda {

struct MulticastGpu {
  CUcontext context = nullptr;
  CUdevice device = 0;
};

struct MulticastSettings {
  uint64_t bytes = 0;  // of each rank, the same on all; rounded up to the driver's granularity
  bool sums = false;   // the switch is to add too; the same on all ranks
  // How long new attempts are made, and how long a call of the driver may take that waits for the
  // fabric manager (one that stalled for 7 s was seen elsewhere). All of it takes at most three
  // times as long; the rendezvous must wait for longer.
  std::chrono::milliseconds patience{15000};
  std::chrono::milliseconds pause{200};  // between two attempts
};

// This rank's part. Dropped when no peer writes through it any more: after the exchanges in which
// this rank granted a place of it.
class Multicast {
 public:
  struct Parts;
  explicit Multicast(std::shared_ptr<Parts> parts);
  ~Multicast();
  Multicast(const Multicast&) = delete;
  Multicast& operator=(const Multicast&) = delete;

  // Where all GPUs are written at once, and read as a sum by multimem instructions.
  CUdeviceptr address() const;
  uint64_t bytes() const;
  // A descriptor of this rank's own memory, for mapping it alone, here and at peers. Throws
  // tide::Error.
  host::Descriptor share() const;

 private:
  const std::shared_ptr<Parts> parts_;
};

struct MulticastResult {
  std::unique_ptr<Multicast> multicast;  // on all ranks or on none
  std::string reason;                    // why there is none; the same text on all ranks
};

// Collective. Nothing else may be under way in the sockets of `lookout`. `driver` is kept until the
// process ends. Throws tide::Error only when the rendezvous does.
MulticastResult make_multicast(const Driver& driver, const MulticastGpu& gpu,
                               const Lookout& lookout, Rendezvous& rendezvous,
                               const MulticastSettings& settings);

}  // namespace tide::device::cuda
