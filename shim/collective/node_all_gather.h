// The all-gather between nodes: every rank pushes its shards inside its node, the rails carry
// node-shards between the slots of equal local ranks, round by round, and what arrives is pushed on
// inside the node at once.
#pragma once

#include <memory>
#include <span>

#include "shim/collective/node_team.h"
#include "shim/layout/node_schedule.h"

namespace tide::collective {

// shards[p]: layout.pieces[p].shard contiguous bytes of this rank, in host memory. `slot`, of
// ranks.team(), holds at least layout.slot bytes and is complete when the returned Pending is; the
// caller releases it. layout.world = nodes * local ranks. Throws tide::Error after a failure.
std::shared_ptr<device::Pending> all_gather(NodeTeam& ranks, const layout::GatherLayout& layout,
                                            std::span<const void* const> shards,
                                            const device::Slot& slot, layout::Schedule schedule,
                                            Call call);

}  // namespace tide::collective
