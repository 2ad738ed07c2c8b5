// The all-gather inside one node: every rank pushes its shard of each parameter to its final,
// parameter-major address in the landing slots of all ranks.
#pragma once

#include <memory>
#include <span>

#include "shim/collective/call.h"
#include "shim/device/device.h"
#include "shim/layout/parameter_major.h"

namespace tide::collective {

// shards[p]: layout.pieces[p].shard contiguous bytes of this rank. `slot` holds at least
// layout.slot bytes and is complete when the returned Pending is; the caller releases it.
// Throws tide::Error when the team has failed.
std::shared_ptr<device::Pending> all_gather(device::Team& team, const layout::GatherLayout& layout,
                                            std::span<const void* const> shards,
                                            const device::Slot& slot, Call call);

}  // namespace tide::collective
