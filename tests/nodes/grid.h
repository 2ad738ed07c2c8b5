// M x L ranks for a test of the collectives between nodes: processes of this machine that are told
// which node they are on, joined by real rails over software verbs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shim/collective/node_team.h"
#include "tests/device/ranks.h"

namespace tide::test {

enum class Device {
  kHost,
  kPlayed,  // a stage: played_device.h
  kCuda,    // the CUDA device, on software GPUs: tests/softcuda
};

struct Grid {
  int nodes = 2;
  int locals = 2;
  Device device = Device::kHost;
  int ranks() const { return nodes * locals; }
};

// Before the ranks of a grid start: a fabric of their own, so that nothing is left over from
// others.
void new_fabric();

// The NodeTeam of one rank, in its own process. Collective. Before the first use of verbs.
std::shared_ptr<collective::NodeTeam> join_grid(
    const Grid& grid, int rank, Board& board, std::chrono::milliseconds timeout,
    const collective::RailSettings& settings = {},
    std::shared_ptr<collective::Fate> fate = std::make_shared<collective::Fate>());

// Waits until what a collective leaves is there for the CPU: with kCuda wait() only makes the
// current stream wait.
void finish(device::Pending& pending);

// What the tests of collectives call the cases: "", "Played", "Cuda".
std::string name_of(Device device);

}  // namespace tide::test
