// The reduce-scatter between nodes. Level 1: the ranks of a node add, for each destination node,
// the node's gradients into fp32 partials. Level 2: partials travel over the rails into receive
// sets, batch by batch, and each rank adds its blocks of them into its output. See
// shim/layout/node_reduce.h for the scheme, which keeps the memory independent of the number of
// nodes.
#pragma once

#include <memory>

#include "shim/collective/node_team.h"
#include "shim/collective/reduce_scatter.h"

namespace tide::collective {

// As the reduce-scatter of one node, with sums in the order of layout/node_reduce.h.
// layout.world = nodes * local ranks. Throws tide::Error after a failure.
std::shared_ptr<device::Pending> reduce_scatter(NodeTeam& ranks, const layout::ReduceLayout& layout,
                                                const ReduceArguments& arguments, Call call);

// Bytes of landing memory that one rank's reduce-scatter uses.
uint64_t reduce_memory(const layout::ReduceLayout& layout, int nodes, int local_ranks,
                       device::DType in, device::DType out);

}  // namespace tide::collective
