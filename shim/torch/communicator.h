// One process group as Tide sees it: what its ranks agreed on, and the team of this node.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>

#include "shim/collective/agreement.h"
#include "shim/collective/node_team.h"
#include "shim/device/device.h"
#include "shim/layout/node_schedule.h"
#include "shim/torch/config.h"

namespace tide::shim {

struct Communicator {
  collective::Decision decision;
  // Of this node; landing slots of all-gathers are its. Null unless decision.tier is kLayout.
  std::shared_ptr<device::Team> team;
  // Where the group spans nodes, else null.
  std::shared_ptr<collective::NodeTeam> gathers;
  std::shared_ptr<collective::NodeTeam> reductions;
  std::chrono::milliseconds timeout{0};
  Schedule schedule = Schedule::kAuto;  // of all-gathers between nodes

  // For an all-gather of `bytes` bytes a rank.
  layout::Schedule schedule_for(uint64_t bytes) const;
};

// The communicator of a process group for one kind of device, made on first use: collective over
// its ranks, through the group's own store. Never throws for a peer that stays away: the decision
// is then kStock on every rank that came, with the reason.
std::shared_ptr<Communicator> communicator_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                              at::Device device, const Config& config);

// Whether this process has met others: a child forked from it must stay out.
bool communicates();

// Takes leave of the other nodes: without it they take the end of this process for a death. At the
// process's normal exit; collectives between nodes fail afterwards.
void close_rails();

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
