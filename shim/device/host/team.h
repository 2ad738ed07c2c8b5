// Host memory as a device: slots in memfds that the ranks of one machine map from each other.
#pragma once

#include <chrono>
#include <memory>

#include "shim/device/device.h"

namespace tide::device {

struct HostTeamOptions {
  std::chrono::milliseconds timeout{600000};  // of an exchange that names none
  std::vector<std::string> names;  // of the team's ranks, for errors ("rank 3"); default "rank N"
};

// Collective over the ranks of the team. Throws tide::Error when a peer cannot be reached.
std::unique_ptr<Team> make_host_team(int rank, int size, Rendezvous& rendezvous,
                                     HostTeamOptions options = {});

}  // namespace tide::device
