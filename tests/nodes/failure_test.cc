// Nodes and ranks that die in the middle of collectives, and rails that are cut. Every survivor
// says who it was, soon; nobody hangs. NODE_KILLS is the number of deaths of each kind.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "include/tide/error.h"
#include "shim/collective/node_all_gather.h"
#include "shim/collective/node_reduce_scatter.h"
#include "tests/nodes/grid.h"
#include "tests/softcuda/test/team.h"

namespace tide::test {
namespace {

using collective::NodeTeam;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kTimeout{10000};
constexpr Grid kGrid{3, 2};

// With a stage wait() only makes a stream wait: whether all went well is known when it is done.
void complete(device::Pending& pending) {
  pending.wait();
  while (!pending.done()) std::this_thread::sleep_for(milliseconds(1));
  pending.wait();
}

// One all-gather and one reduce-scatter, checked; a text when the data are wrong.
std::string both(NodeTeam& gathers, NodeTeam& reductions, const Grid& grid, int rank, int turn) {
  const uint64_t shards[] = {50001, 3};
  const layout::GatherLayout gather = layout::gather_layout(shards, grid.ranks());
  const layout::Gradient gradients[] = {{static_cast<uint64_t>(grid.ranks()) * 5, 1001}};
  const layout::ReduceLayout reduce = layout::reduce_layout(gradients, grid.ranks());
  std::vector<std::vector<std::byte>> memory;
  std::vector<const void*> addresses;
  for (const uint64_t bytes : shards) {
    memory.emplace_back(bytes, static_cast<std::byte>(rank * 16 + turn));
    addresses.push_back(memory.back().data());
  }
  auto kept = std::make_shared<decltype(memory)>(std::move(memory));
  const device::Slot slot = gathers.team().acquire(gather.slot);
  auto gathering = all_gather(gathers, gather, addresses, slot, layout::Schedule::kNearFirst,
                              {.what = "all-gather of layers.3", .timeout = {}, .keep = kept});
  auto gradient = std::make_shared<std::vector<float>>(gradients[0].rows * gradients[0].row,
                                                       static_cast<float>(rank + turn));
  auto output = std::make_shared<std::vector<float>>(reduce.out);
  const void* data = gradient->data();
  auto keep = std::make_shared<std::pair<decltype(gradient), decltype(output)>>(gradient, output);
  auto reducing =
      reduce_scatter(reductions, reduce, {.gradients = {&data, 1}, .output = output->data()},
                     {.what = "reduce-scatter of layers.3", .timeout = {}, .keep = keep});
  complete(*gathering);
  for (int owner = 0; owner < grid.ranks(); ++owner) {
    for (size_t p = 0; p < 2; ++p) {
      const std::byte* begin = slot.data + gather.parameter_major(owner, p);
      for (uint64_t i = 0; i < shards[p]; ++i) {
        if (begin[i] != static_cast<std::byte>(owner * 16 + turn)) return "all-gather is wrong";
      }
    }
  }
  gathers.team().release(slot);
  complete(*reducing);
  const int world = grid.ranks();
  const float expected = static_cast<float>(world * turn + world * (world - 1) / 2);
  for (const float value : *output) {
    if (value != expected) return "reduce-scatter is wrong";
  }
  return "";
}

struct Fate {
  std::string error;
  double seconds = 0;  // from the death to the error
};

// Kills ranks [first, first + count) at a random moment of an endless run, and says how the others
// ended.
std::vector<std::string> fates(const Grid& grid, int first, int count, uint64_t seed) {
  new_fabric();
  Random random(seed);
  const auto moment = std::chrono::microseconds(random.below(40000));
  auto body = [&](int rank, Board& board) -> std::string {
    const auto fate = std::make_shared<collective::Fate>();
    auto gathers = join_grid(grid, rank, board, kTimeout, {}, fate);
    auto reductions = join_grid(grid, rank, board, kTimeout, {}, fate);
    board.barrier(rank);
    board.set(rank, 1);
    for (int turn = 0; turn < 16; turn = (turn + 1) % 16) {
      try {
        const std::string wrong = both(*gathers, *reductions, grid, rank, turn);
        if (!wrong.empty()) return wrong;
      } catch (const Error& error) {
        const auto now = steady_clock::now().time_since_epoch().count();
        const double seconds = static_cast<double>(now - static_cast<int64_t>(board.get(32))) / 1e9;
        if (seconds > 8) return "late, " + std::to_string(seconds) + " s: " + error.what();
        return std::string("error: ") + error.what();
      }
    }
    return "";
  };
  return run_processes(grid.ranks(), body, [&](const std::vector<pid_t>& pids, Board& board) {
    for (int rank = 0; rank < grid.ranks(); ++rank) EXPECT_TRUE(board.await(rank));
    std::this_thread::sleep_for(moment);
    board.set(32, static_cast<uint64_t>(steady_clock::now().time_since_epoch().count()));
    for (int rank = first; rank < first + count; ++rank) kill(pids[rank], SIGKILL);
  });
}

int kills() {
  const char* set = std::getenv("NODE_KILLS");
  return set != nullptr ? std::atoi(set) : 8;
}

class NodeFailure : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam() == Device::kCuda && !have_softcuda())
      GTEST_SKIP() << "no software GPU in this build";
  }
  const Grid grid_{kGrid.nodes, kGrid.locals, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Devices, NodeFailure,
                         testing::Values(Device::kHost, Device::kPlayed, Device::kCuda),
                         [](const auto& info) {
                           return info.param == Device::kHost ? "Host" : name_of(info.param);
                         });

TEST_P(NodeFailure, DeathOfANodeIsNamedByEverySurvivor) {
  int with_round = 0;
  for (int turn = 0; turn < kills(); ++turn) {
    const int node = turn % kGrid.nodes;
    const auto ends = fates(grid_, node * kGrid.locals, kGrid.locals, 1 + turn);
    for (int rank = 0; rank < kGrid.ranks(); ++rank) {
      if (rank / kGrid.locals == node) continue;
      const std::string& end = ends[rank];
      EXPECT_TRUE(end.starts_with("error: "))
          << "kill " << turn << ", rank " << rank << ": " << end;
      EXPECT_NE(end.find("node " + std::to_string(node) + " (rank "), std::string::npos) << end;
      EXPECT_NE(end.find("rail"), std::string::npos) << end;
      with_round += end.find("round ") != std::string::npos;
    }
  }
  // A node may die while nothing is under way with it; most do not.
  EXPECT_GT(with_round, 0);
}

TEST_P(NodeFailure, DeathOfARankStopsAll) {
  for (int turn = 0; turn < kills(); ++turn) {
    const int dead = turn % kGrid.ranks();
    const auto ends = fates(grid_, dead, 1, 1001 + turn);
    for (int rank = 0; rank < kGrid.ranks(); ++rank) {
      if (rank == dead) continue;
      const std::string& end = ends[rank];
      EXPECT_TRUE(end.starts_with("error: "))
          << "kill " << turn << ", rank " << rank << ": " << end;
      EXPECT_NE(end.find("rank " + std::to_string(dead)), std::string::npos)
          << "kill " << turn << ", rank " << rank << " of those that outlived " << dead << ": "
          << end;
    }
  }
}

}  // namespace
}  // namespace tide::test
