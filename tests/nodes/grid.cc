#include "tests/nodes/grid.h"

#include <unistd.h>

#include <cstdlib>

#include "shim/device/host/team.h"
#include "tests/nodes/played_device.h"
#include "tests/softcuda/test/team.h"

namespace tide::test {
namespace {

// Some of the board's ranks, which all go through the same exchanges.
class Part : public device::Rendezvous {
 public:
  Part(Board& board, int rank, int first, int stride, int count)
      : board_(board), rank_(rank), first_(first), stride_(stride), count_(count) {}
  std::vector<std::string> exchange(const std::string& mine) override {
    const std::vector<std::string> all = board_.exchange(rank_, mine);
    std::vector<std::string> part;
    for (int i = 0; i < count_; ++i) part.push_back(all[first_ + i * stride_]);
    return part;
  }

 private:
  Board& board_;
  const int rank_, first_, stride_, count_;
};

}  // namespace

void new_fabric() {
  static int number = 0;
  const std::string name = "nodes-" + std::to_string(getpid()) + "-" + std::to_string(++number);
  setenv("SOFTVERBS_FABRIC", name.c_str(), 1);
}

std::shared_ptr<collective::NodeTeam> join_grid(const Grid& grid, int rank, Board& board,
                                                std::chrono::milliseconds timeout,
                                                const collective::RailSettings& settings,
                                                std::shared_ptr<collective::Fate> fate) {
  const int node = rank / grid.locals;
  const int local = rank % grid.locals;
  setenv("SOFTVERBS_HOST", std::to_string(node).c_str(), 1);
  Part mates(board, rank, node * grid.locals, 1, grid.locals);
  std::vector<std::string> names;
  for (int q = 0; q < grid.locals; ++q) {
    names.push_back("rank " + std::to_string(node * grid.locals + q));
  }
  std::unique_ptr<device::Team> team;
  if (grid.device == Device::kCuda) {
    device::CudaTeamOptions options;
    options.timeout = timeout;
    options.names = std::move(names);
    team = join_softcuda(local, grid.locals, mates, std::move(options));
  } else {
    team = device::make_host_team(local, grid.locals, mates,
                                  {.timeout = timeout, .names = std::move(names)});
    if (grid.device == Device::kPlayed) team = play_device(std::move(team));
  }

  collective::RailPlace place{.node = node,
                              .nodes = grid.nodes,
                              .rail = local,
                              .rails = grid.locals,
                              .names = {},
                              .timeout = timeout};
  for (int n = 0; n < grid.nodes; ++n) {
    place.names.push_back("node " + std::to_string(n) + " (rank " +
                          std::to_string(n * grid.locals + local) + ")");
  }
  auto rail = std::make_unique<collective::Rail>(place, settings);
  Part equals(board, rank, local, grid.locals, grid.nodes);
  rail->connect(equals.exchange(rail->address()));
  return std::make_shared<collective::NodeTeam>(std::move(team), std::move(rail), node, grid.nodes,
                                                timeout, std::move(fate));
}

void finish(device::Pending& pending) {
  pending.wait();
  synchronize();
}

std::string name_of(Device device) {
  return device == Device::kHost ? "" : device == Device::kPlayed ? "Played" : "Cuda";
}

}  // namespace tide::test
