// A landing slot of a team, given back by whoever drops it last.
#pragma once

#include <memory>
#include <utility>

#include "shim/device/device.h"

namespace tide::shim {

struct Lease {
  std::shared_ptr<device::Team> team;
  device::Slot slot;
  Lease(std::shared_ptr<device::Team> owner, const device::Slot& acquired)
      : team(std::move(owner)), slot(acquired) {}
  ~Lease() { team->release(slot); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
};

}  // namespace tide::shim
