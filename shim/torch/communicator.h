// One process group as Tide sees it: what its ranks agreed on, and the team of this node.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>

#include "shim/collective/agreement.h"
#include "shim/device/device.h"
#include "shim/torch/config.h"

namespace tide::shim {

struct Communicator {
  collective::Decision decision;
  std::shared_ptr<device::Team> team;  // null unless decision.tier is kLayout
  std::chrono::milliseconds timeout{0};
};

// The communicator of a process group for one kind of device, made on first use: collective over
// its ranks, through the group's own store. Never throws for a peer that stays away: the decision
// is then kStock on every rank that came, with the reason.
std::shared_ptr<Communicator> communicator_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                              at::Device device, const Config& config);

// Whether this process has met others: a child forked from it must stay out.
bool communicates();

// Sums over all teams of this process.
device::TeamStats team_stats();
// The largest process group seen, in ranks and nodes, and the largest team, for the report.
struct Topology {
  int world_size = 0;
  int nodes = 0;
  int local_ranks = 0;
};
Topology topology();

}  // namespace tide::shim
