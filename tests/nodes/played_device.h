// A team with a stage, played in host memory: what a GPU's stream would do, a thread does, in
// order, behind the thread that enqueues it. So the collectives' way with gates is tested without a
// GPU.
#pragma once

#include <memory>

#include "shim/device/device.h"

namespace tide::test {

// Around a host team. `current stream`s are played by blocking: Pending::wait() outside of a turn,
// and what Stage::end() returns, return when the work is done.
std::unique_ptr<device::Team> play_device(std::unique_ptr<device::Team> team);

}  // namespace tide::test
