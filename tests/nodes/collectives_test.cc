// All-gather and reduce-scatter between nodes, on every shape of grid that fits the machine, over
// real rails on software verbs: bytes and bits as they must be.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

#include "include/tide/error.h"
#include "shim/collective/node_all_gather.h"
#include "shim/collective/node_reduce_scatter.h"
#include "shim/layout/node_reduce.h"
#include "tests/nodes/grid.h"
#include "tests/softcuda/test/team.h"

namespace tide::test {
namespace {

using collective::NodeTeam;
using device::DType;
using layout::Schedule;

constexpr std::chrono::milliseconds kTimeout{30000};

struct Case {
  Grid grid;
  tide_rail_pacing pacing = TIDE_RAIL_PACE_HEAD;
  int queue_pairs = 2;
};

class NodeCollectives : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().grid.device == Device::kCuda && !have_softcuda()) {
      GTEST_SKIP() << "no software GPU in this build";
    }
  }
  void run(const std::function<std::string(NodeTeam&, int rank)>& body) const {
    const Case test = GetParam();
    new_fabric();
    // Small heads, so that short transfers have tails.
    const collective::RailSettings settings{
        .pacing = test.pacing, .head_bytes = 4096, .queue_pairs = test.queue_pairs};
    const auto results = run_processes(
        test.grid.ranks(),
        [&](int rank, Board& board) -> std::string {
          auto team = join_grid(test.grid, rank, board, kTimeout, settings);
          const std::string result = body(*team, rank);
          board.barrier(rank);  // nobody leaves early
          return result;
        },
        nullptr);
    EXPECT_EQ(results, std::vector<std::string>(test.grid.ranks()));
  }
};

INSTANTIATE_TEST_SUITE_P(Grids, NodeCollectives,
                         testing::Values(Case{{2, 1}}, Case{{2, 2}}, Case{{3, 2}}, Case{{2, 4}},
                                         Case{{4, 2}}, Case{{5, 1}, TIDE_RAIL_PACE_HEAD, 1},
                                         Case{{3, 3}, TIDE_RAIL_PACE_FULL, 3},
                                         Case{{7, 2}, TIDE_RAIL_PACE_OFF, 2}, Case{{16, 1}},
                                         Case{{2, 2, Device::kPlayed}},
                                         Case{{4, 2, Device::kPlayed}},
                                         Case{{3, 1, Device::kPlayed}},
                                         Case{{7, 2, Device::kPlayed}, TIDE_RAIL_PACE_OFF, 2},
                                         Case{{2, 2, Device::kCuda}}, Case{{4, 2, Device::kCuda}},
                                         Case{{3, 1, Device::kCuda}},
                                         Case{{7, 2, Device::kCuda}, TIDE_RAIL_PACE_OFF, 2}),
                         [](const auto& info) {
                           const Case& test = info.param;
                           return name_of(test.grid.device) + std::to_string(test.grid.nodes) +
                                  "x" + std::to_string(test.grid.locals) + "Pacing" +
                                  std::to_string(test.pacing) + "Pairs" +
                                  std::to_string(test.queue_pairs);
                         });

std::byte pattern(int turn, int rank, size_t piece, uint64_t at) {
  return static_cast<std::byte>(turn * 101 + rank * 37 + piece * 11 + at * 7 + (at >> 8));
}

TEST_P(NodeCollectives, AllGather) {
  run([](NodeTeam& ranks, int rank) -> std::string {
    const uint64_t shards[] = {1, 4096, 0, 300001, 2, 77};
    const int world = ranks.nodes() * ranks.local_ranks();
    const layout::GatherLayout layout = layout::gather_layout(shards, world);
    int turn = 0;
    for (const Schedule schedule :
         {Schedule::kNearFirst, Schedule::kFarFirst, Schedule::kRing, Schedule::kNearFirst}) {
      ++turn;
      std::vector<std::vector<std::byte>> memory;
      std::vector<const void*> addresses;
      for (size_t p = 0; p < std::size(shards); ++p) {
        memory.emplace_back(shards[p]);
        for (uint64_t i = 0; i < shards[p]; ++i) memory[p][i] = pattern(turn, rank, p, i);
      }
      for (const auto& shard : memory) addresses.push_back(shard.data());
      const device::Slot slot = ranks.team().acquire(layout.slot);
      std::memset(slot.data, 0xee, slot.bytes);
      finish(*all_gather(ranks, layout, addresses, slot, schedule,
                         {.what = "all-gather of layers.3"}));
      for (int owner = 0; owner < world; ++owner) {
        for (size_t p = 0; p < std::size(shards); ++p) {
          for (uint64_t i = 0; i < shards[p]; ++i) {
            if (slot.data[layout.parameter_major(owner, p) + i] != pattern(turn, owner, p, i)) {
              return "turn " + std::to_string(turn) + ": byte " + std::to_string(i) +
                     " of the shard " + std::to_string(p) + " of rank " + std::to_string(owner);
            }
          }
        }
      }
      ranks.team().release(slot);
    }
    return "";
  });
}

// Values of many magnitudes, so that the order of additions shows.
float value_of(int turn, int rank, size_t piece, uint64_t i) {
  const uint64_t mixed = (turn * 7919 + rank * 104729 + piece * 1299709 + i) * 2654435761u;
  const float magnitude = std::ldexp(1.0f, static_cast<int>(mixed >> 20 & 15) - 8);
  return (mixed >> 40 & 1 ? -1.0f : 1.0f) * magnitude *
         (1.0f + static_cast<float>(mixed >> 8 & 127) / 128.0f);  // exact in bf16
}

// By the documented order: inside each node by local rank, then the nodes n, n - 1, n - 2, ... from
// the owner's node n on.
float reference(const Grid& grid, int turn, int owner, size_t piece, uint64_t i, float factor) {
  const int home = owner / grid.locals;
  float total = 0;
  for (int c = 0; c < grid.nodes; ++c) {
    const int node = (home - c + grid.nodes) % grid.nodes;
    float partial = value_of(turn, node * grid.locals, piece, i);
    for (int q = 1; q < grid.locals; ++q) {
      partial += value_of(turn, node * grid.locals + q, piece, i);
    }
    total = c == 0 ? partial : total + partial;
  }
  return factor == 1.0f ? total : total * factor;
}

uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void check_reduce_scatter(
    const std::function<void(const std::function<std::string(NodeTeam&, int)>&)>& run, DType in,
    DType out, float factor) {
  run([&](NodeTeam& ranks, int rank) -> std::string {
    const Grid grid{ranks.nodes(), ranks.local_ranks()};
    // Rows that the ranks divide and rows that they do not, fewer rows than ranks, one element.
    const layout::Gradient gradients[] = {
        {64, 33}, {static_cast<uint64_t>(grid.ranks()) + 1, 7}, {1, 1}, {3, 1001}, {240, 128}};
    const layout::ReduceLayout layout = layout::reduce_layout(gradients, grid.ranks());
    for (int turn = 1; turn <= 3; ++turn) {
      std::vector<std::vector<std::byte>> memory;
      std::vector<const void*> addresses;
      for (size_t p = 0; p < std::size(gradients); ++p) {
        const uint64_t count = gradients[p].rows * gradients[p].row;
        memory.emplace_back(count * device::size_of(in));
        for (uint64_t i = 0; i < count; ++i) {
          const float value = value_of(turn, rank, p, i);
          if (in == DType::kFloat32) {
            std::memcpy(memory[p].data() + 4 * i, &value, 4);
          } else {
            const uint16_t narrow = to_bfloat16(value);
            std::memcpy(memory[p].data() + 2 * i, &narrow, 2);
          }
        }
      }
      for (const auto& gradient : memory) addresses.push_back(gradient.data());
      std::vector<std::byte> output(layout.out * device::size_of(out), std::byte{0xee});
      finish(*reduce_scatter(
          ranks, layout,
          {.gradients = addresses, .in = in, .output = output.data(), .out = out, .factor = factor},
          {.what = "reduce-scatter of layers.3"}));

      std::vector<float> expected(layout.out, 0.0f);
      for (const layout::ReduceRun& run : layout::reduce_runs(layout, rank)) {
        for (uint64_t i = 0; i < run.count; ++i) {
          expected[run.out + i] = reference(grid, turn, rank, run.piece, run.from + i, factor);
        }
      }
      for (uint64_t i = 0; i < layout.out; ++i) {
        bool equal = false;
        if (out == DType::kFloat32) {
          equal = std::memcmp(output.data() + 4 * i, &expected[i], 4) == 0;
        } else {
          const uint16_t narrow = to_bfloat16(expected[i]);
          equal = std::memcmp(output.data() + 2 * i, &narrow, 2) == 0;
        }
        if (!equal) return "turn " + std::to_string(turn) + ": element " + std::to_string(i);
      }
    }
    return "";
  });
}

TEST_P(NodeCollectives, ReduceScatterBfloat16ToFloat) {
  check_reduce_scatter([this](const auto& body) { run(body); }, DType::kBFloat16, DType::kFloat32,
                       1.0f / 3.0f);
}

TEST_P(NodeCollectives, ReduceScatterFloatToBfloat16) {
  check_reduce_scatter([this](const auto& body) { run(body); }, DType::kFloat32, DType::kBFloat16,
                       1.0f);
}

// Many collectives in flight, of both kinds, without waiting in between.
TEST_P(NodeCollectives, Queued) {
  run([](NodeTeam& ranks, int rank) -> std::string {
    const Grid grid{ranks.nodes(), ranks.local_ranks()};
    constexpr int kTurns = 6;
    const uint64_t shards[] = {10007};
    const layout::GatherLayout gather = layout::gather_layout(shards, grid.ranks());
    const layout::Gradient gradients[] = {{static_cast<uint64_t>(grid.ranks()), 1009}};
    const layout::ReduceLayout reduce = layout::reduce_layout(gradients, grid.ranks());
    std::vector<std::shared_ptr<device::Pending>> pending;
    std::vector<device::Slot> slots;
    std::vector<std::vector<float>> outputs(kTurns, std::vector<float>(reduce.out));
    for (int turn = 0; turn < kTurns; ++turn) {
      auto shard = std::make_shared<std::vector<std::byte>>(shards[0]);
      for (uint64_t i = 0; i < shards[0]; ++i) (*shard)[i] = pattern(turn, rank, 0, i);
      const void* address = shard->data();
      slots.push_back(ranks.team().acquire(gather.slot));
      pending.push_back(all_gather(ranks, gather, {&address, 1}, slots.back(), Schedule::kNearFirst,
                                   {.what = "all-gather", .timeout = {}, .keep = shard}));
      auto gradient = std::make_shared<std::vector<float>>(grid.ranks() * 1009);
      for (size_t i = 0; i < gradient->size(); ++i) (*gradient)[i] = value_of(turn, rank, 0, i);
      const void* data = gradient->data();
      pending.push_back(
          reduce_scatter(ranks, reduce, {.gradients = {&data, 1}, .output = outputs[turn].data()},
                         {.what = "reduce-scatter", .timeout = {}, .keep = gradient}));
    }
    for (const auto& work : pending) finish(*work);
    for (int turn = 0; turn < kTurns; ++turn) {
      for (int owner = 0; owner < grid.ranks(); ++owner) {
        for (uint64_t i = 0; i < shards[0]; ++i) {
          if (slots[turn].data[gather.parameter_major(owner, 0) + i] != pattern(turn, owner, 0, i))
            return "all-gather " + std::to_string(turn);
        }
      }
      for (uint64_t i = 0; i < reduce.out; ++i) {
        if (outputs[turn][i] != reference(grid, turn, rank, 0, rank * 1009 + i, 1.0f))
          return "reduce-scatter " + std::to_string(turn);
      }
    }
    return "";
  });
}

// Who drops a Pending early need not wait: what the collective reads and writes lives until it is
// done, and is let go by a later call, in the caller's thread.
TEST_P(NodeCollectives, DroppedEarly) {
  run([](NodeTeam& ranks, int rank) -> std::string {
    const Grid grid{ranks.nodes(), ranks.local_ranks()};
    const layout::Gradient gradients[] = {{static_cast<uint64_t>(grid.ranks()), 5003}};
    const layout::ReduceLayout reduce = layout::reduce_layout(gradients, grid.ranks());
    struct Memory {
      std::vector<float> gradient, output;
    };
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> freed{0};
    std::atomic<bool> elsewhere{false};
    auto start = [&] {
      auto* memory = new Memory{std::vector<float>(grid.ranks() * 5003, static_cast<float>(rank)),
                                std::vector<float>(reduce.out)};
      const void* data = memory->gradient.data();
      return reduce_scatter(ranks, reduce,
                            {.gradients = {&data, 1}, .output = memory->output.data()},
                            {.what = "reduce-scatter",
                             .timeout = {},
                             .keep = std::shared_ptr<Memory>(memory, [&](Memory* m) {
                               ++freed;
                               if (std::this_thread::get_id() != caller) elsewhere = true;
                               delete m;
                             })});
    };
    constexpr int kTurns = 5;
    for (int turn = 0; turn < kTurns; ++turn) start();  // dropped at once
    finish(*start());
    finish(*start());
    if (elsewhere) return "freed in a thread of Tide";
    return freed == kTurns + 2 ? "" : std::to_string(freed) + " freed";
  });
}

TEST(NodeMemory, OfAReduceScatterDoesNotGrowWithTheNodes) {
  for (const int locals : {1, 2, 4, 8}) {
    std::vector<uint64_t> receives, all;
    for (const int nodes : {2, 4, 8, 16}) {
      // One million elements of output on every rank.
      const layout::Gradient gradient{static_cast<uint64_t>(nodes) * locals, 1 << 20};
      const layout::ReduceLayout layout = layout::reduce_layout({&gradient, 1}, nodes * locals);
      const layout::ReduceGrid grid = layout::reduce_grid(layout, nodes, locals);
      receives.push_back(grid.sets * grid.set_elements());
      all.push_back(
          collective::reduce_memory(layout, nodes, locals, DType::kBFloat16, DType::kFloat32));
    }
    EXPECT_EQ(receives, std::vector<uint64_t>(4, receives[0])) << locals;
    // With landing places and blocks: fewer sources than local ranks need less.
    for (const uint64_t some : all) EXPECT_LE(some, all.back()) << locals;
  }
}

}  // namespace
}  // namespace tide::test
