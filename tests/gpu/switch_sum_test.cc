// Reduce-scatters that the switch adds, by whole CUDA teams on a driver that is played: when that
// is chosen, what is enqueued, and that sums are right however the ranks' streams run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "include/tide/error.h"
#include "shim/collective/reduce_scatter.h"
#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/team.h"
#include "tests/device/ranks.h"
#include "tests/gpu/fake_fabric.h"
#include "tests/gpu/played_gpu.h"

namespace tide::test {
namespace {

using device::CudaTeamOptions;
using device::DType;
using device::Exchange;
using device::Pending;
using device::Slot;
using device::Team;

constexpr int kRanks = 3;
constexpr float kFactor = 0.5f;
constexpr const char* kLoadReduce = "tide_load_reduce";

thread_local CUstream current_stream = nullptr;

using Shapes = std::vector<layout::Gradient>;  // rows, elements of a row

// Values for which every sum, and its bf16 form, is exact.
float value_of(int rank, size_t piece, uint64_t element, uint64_t round) {
  return static_cast<float>((element * 7 + rank * 5 + piece * 3 + round * 11) % 16);
}

// One rank's gradients and its share of their sum; nothing in it is aligned to more than its type.
class Scatter {
 public:
  Scatter(const Shapes& shapes, int rank, int ranks, uint64_t round, DType in = DType::kFloat32,
          DType out = DType::kFloat32)
      : layout_(layout::reduce_layout(shapes, ranks)),
        rank_(rank),
        round_(round),
        in_(in),
        out_(out),
        output_(layout_.out + 8, -1.0f) {
    for (size_t p = 0; p < shapes.size(); ++p) {
      std::vector<float>& gradient = gradients_.emplace_back(layout_.pieces[p].elements + 1);
      auto* memory = reinterpret_cast<std::byte*>(gradient.data()) + size_of(in);
      addresses_.push_back(memory);
      for (uint64_t e = 0; e < layout_.pieces[p].elements; ++e) {
        const float value = value_of(rank, p, e, round);
        const auto* bytes = reinterpret_cast<const std::byte*>(&value);
        std::memcpy(memory + e * size_of(in), bytes + 4 - size_of(in), size_of(in));
      }
    }
  }

  std::shared_ptr<Pending> start(const std::shared_ptr<Team>& team) {
    return collective::reduce_scatter(team, layout_,
                                      {.gradients = addresses_,
                                       .in = in_,
                                       .output = output_.data() + 1,
                                       .out = out_,
                                       .factor = kFactor},
                                      {.what = "reduce-scatter"});
  }

  // Whether a rank has rows to add, not only padding.
  bool adds(int rank) const { return !layout::reduce_runs(layout_, rank).empty(); }

  // When the stream that waited is idle: what is wrong, or nothing.
  std::string check() const {
    std::vector<float> expected(layout_.out);
    for (const layout::ReduceRun& run : layout::reduce_runs(layout_, rank_)) {
      for (uint64_t i = 0; i < run.count; ++i) {
        for (int q = 0; q < layout_.world; ++q) {
          expected[run.out + i] += kFactor * value_of(q, run.piece, run.from + i, round_);
        }
      }
    }
    const auto* memory = reinterpret_cast<const std::byte*>(output_.data() + 1);
    for (uint64_t i = 0; i < layout_.out; ++i) {
      float got = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&got) + 4 - size_of(out_),
                  memory + i * size_of(out_), size_of(out_));
      if (got != expected[i]) {
        return "element " + std::to_string(i) + " of " + std::to_string(layout_.out) + " is " +
               std::to_string(got) + ", not " + std::to_string(expected[i]);
      }
    }
    if (output_.front() != -1.0f || output_.back() != -1.0f) return "written outside the output";
    return {};
  }

 private:
  const layout::ReduceLayout layout_;
  const int rank_;
  const uint64_t round_;
  const DType in_;
  const DType out_;
  std::vector<std::vector<float>> gradients_;
  std::vector<const void*> addresses_;
  std::vector<float> output_;
};

void synchronize() { device::cuda::driver().cuStreamSynchronize(current_stream); }

using Body = std::function<std::string(int rank, const std::shared_ptr<Team>&, Board&)>;
using Change = std::function<void(int rank, CudaTeamOptions&)>;

// Runs `body` on the ranks of a team whose switch adds, unless `change` says otherwise. Nothing may
// go wrong on a rank, break a rule of the driver or stay behind.
void run(int ranks, uint64_t seed, const Body& body, const Change& change = nullptr) {
  gpu::reset(seed);
  const auto texts = run_ranks(Mode::kThreads, ranks, [&](int rank, Board& board) -> std::string {
    device::cuda::driver().cuCtxPushCurrent(fabric::context(rank));
    current_stream = gpu::make_stream(rank);
    CudaTeamOptions options;
    options.timeout = std::chrono::seconds(20);
    options.ordinal = rank;
    options.current_stream = [] { return current_stream; };
    options.multicast_bytes = fabric::kMulticastGranularity;
    options.multicast_sums = true;
    if (change) change(rank, options);
    BoardRendezvous rendezvous(board, rank);
    std::shared_ptr<Team> team = make_cuda_team(rank, ranks, rendezvous, options);
    gpu::forget(rank);
    const std::string text = body(rank, team, board);
    team.reset();
    board.barrier(rank);
    return text;
  });
  EXPECT_EQ(texts, std::vector<std::string>(ranks)) << "seed " << seed;
  EXPECT_EQ(fabric::broken_rules(), "");
  EXPECT_EQ(fabric::held(), "");
}

bool has(const std::vector<std::string>& operations, const std::string& what) {
  return std::ranges::find(operations, what) != operations.end();
}

bool pushes(int rank, const std::vector<std::string>& operations) {
  return std::ranges::any_of(operations, [rank](const std::string& what) {
    return what.starts_with("copy to ") && what != "copy to " + std::to_string(rank);
  });
}

// One reduce-scatter, right, added by the switch or not.
std::string scatter(int rank, const std::shared_ptr<Team>& team, bool by_switch,
                    const Shapes& shapes, DType in = DType::kFloat32, DType out = DType::kFloat32) {
  Scatter scatter(shapes, rank, team->size(), 1, in, out);
  gpu::forget(rank);
  scatter.start(team)->wait();
  synchronize();
  const auto operations = gpu::enqueued(rank);
  if (has(operations, kLoadReduce) != (by_switch && scatter.adds(rank))) {
    return by_switch ? "not added by the switch" : "added by the switch";
  }
  bool for_others = false;
  for (int q = 0; q < team->size(); ++q) for_others |= q != rank && scatter.adds(q);
  if (pushes(rank, operations) != (for_others && !by_switch)) {
    return by_switch ? "pushed too" : "not pushed";
  }
  return scatter.check();
}

const Shapes kOdd{{7, 3}, {3, 1}, {1, 5}, {30, 41}};  // with padding on some ranks
const Shapes kEven{{6, 5}};

Shapes random_shapes(Random& random) {
  Shapes shapes;
  for (uint64_t p = 1 + random.below(4); p > 0; --p) {
    shapes.push_back({1 + random.below(20), 1 + random.below(random.below(5) == 0 ? 3000 : 40)});
  }
  return shapes;
}

TEST(SwitchSum, AddsWhatAllRanksHoldAtOddStartsAndLengths) {
  for (int ranks : {2, 3, 8}) {
    fabric::reset(ranks, {});
    run(ranks, 1, [](int rank, const std::shared_ptr<Team>& team, Board&) -> std::string {
      Random random(7);  // the same shapes on all ranks
      for (int round = 0; round < 25; ++round) {
        const auto wrong = scatter(rank, team, /*by_switch=*/true, random_shapes(random));
        if (!wrong.empty()) return "round " + std::to_string(round) + ": " + wrong;
      }
      return {};
    });
  }
}

TEST(SwitchSum, LongSumsTakeSeveralLaunches) {
  fabric::reset(kRanks, {});
  run(
      kRanks, 2,
      [](int rank, const std::shared_ptr<Team>& team, Board&) -> std::string {
        const auto wrong = scatter(rank, team, true, {{600, 601}});
        if (!wrong.empty()) return wrong;
        const auto operations = gpu::enqueued(rank);
        // 4 blocks of a tile each.
        return std::ranges::count(operations, kLoadReduce) == 200 * 601 / (4 * 16384) + 1
                   ? ""
                   : "another number of launches";
      },
      [](int, CudaTeamOptions& options) { options.max_launch = std::chrono::microseconds(1); });
}

// As multicast_reduce.h says.
TEST(SwitchSum, EnqueuesReadsBetweenTheWordsOfAllRanks) {
  fabric::reset(kRanks, {});
  run(kRanks, 3, [](int rank, const std::shared_ptr<Team>& team, Board&) -> std::string {
    auto wrong = scatter(rank, team, true, kEven);
    const std::string own = "copy to " + std::to_string(rank);
    const std::vector<std::string> expected{own,    own,    own,         "write", "write",
                                            "wait", "wait", kLoadReduce, "write", "write",
                                            "wait", "wait", "write"};
    EXPECT_EQ(gpu::enqueued(rank), expected);
    // The padding of the last rank.
    wrong += scatter(rank, team, true, {{7, 2}, {1, 1}});
    EXPECT_EQ(has(gpu::enqueued(rank), "tide_sum_Float32_Float32_0"), rank > 0);
    return wrong;
  });
}

TEST(SwitchSum, PushesWhereItWasNotAskedFor) {
  fabric::reset(kRanks, {});
  run(
      kRanks, 4,
      [](int rank, const std::shared_ptr<Team>& team, Board&) -> std::string {
        const auto wrong = scatter(rank, team, false, kEven);
        const std::string first = "copy to " + std::to_string((rank + 1) % kRanks);
        const std::string second = "copy to " + std::to_string((rank + 2) % kRanks);
        const std::vector<std::string> expected{"write",
                                                "write",
                                                "wait",
                                                first,
                                                "write",
                                                "wait",
                                                second,
                                                "write",
                                                "wait",
                                                "wait",
                                                "tide_sum_Float32_Float32_0",
                                                "write"};
        EXPECT_EQ(gpu::enqueued(rank), expected);
        return wrong;
      },
      [](int, CudaTeamOptions& options) { options.multicast_sums = false; });
}

TEST(SwitchSum, AddsFp32OnlyIntoFp32) {
  fabric::reset(kRanks, {});
  run(kRanks, 5, [](int rank, const std::shared_ptr<Team>& team, Board&) {
    return scatter(rank, team, false, kOdd, DType::kBFloat16, DType::kFloat32) +
           scatter(rank, team, false, kOdd, DType::kFloat32, DType::kBFloat16) +
           scatter(rank, team, false, kOdd, DType::kBFloat16, DType::kBFloat16) +
           scatter(rank, team, true, kOdd);
  });
}

// What rank 1 alone holds moves its slots; the others see that, and all push.
TEST(SwitchSum, SlotsMustLieAtOneOffset) {
  fabric::reset(kRanks, {});
  run(kRanks, 6, [](int rank, const std::shared_ptr<Team>& team, Board&) {
    auto wrong = scatter(rank, team, true, kOdd);
    const Slot held = rank == 1 ? team->acquire(512) : Slot{};
    wrong += scatter(rank, team, false, kOdd);
    if (rank == 1) team->release(held);
    return wrong + scatter(rank, team, true, kOdd);
  });
}

TEST(SwitchSum, SlotsBeyondMulticastMemoryArePushedTo) {
  fabric::reset(kRanks, {});
  run(kRanks, 7, [](int rank, const std::shared_ptr<Team>& team, Board&) {
    return scatter(rank, team, false, {{1024, 2048}}) + scatter(rank, team, true, kOdd);
  });
}

// A slot that is lent for gradients step after step, and that no exchange lands in, remembers its
// last use, not every use.
TEST(FreeSlots, LentForManyStepsHoldNoMoreEvents) {
  fabric::reset(kRanks, {});
  run(
      kRanks, 8,
      [](int rank, const std::shared_ptr<Team>& team, Board& board) -> std::string {
        auto wrong = scatter(rank, team, false, kOdd);
        const auto lend = [&](int times) {
          for (int i = 0; i < times; ++i) {
            const auto slot = team->acquire_free(1024);
            if (!slot) return false;
            team->release(*slot);
          }
          synchronize();
          return true;
        };
        if (!lend(10)) return wrong + "no free slot";
        board.barrier(rank);
        const size_t before = gpu::events();
        board.barrier(rank);
        if (!lend(100)) return wrong + "no free slot any more";
        board.barrier(rank);
        if (gpu::events() > before + kRanks) {
          wrong += std::to_string(before) + " events, then " + std::to_string(gpu::events());
        }
        return wrong;
      },
      [](int, CudaTeamOptions& options) { options.multicast_sums = false; });
}

TEST(SwitchSum, WithoutMulticastMemoryAllPush) {
  struct Case {
    std::function<void()> spoil;
    Change change;
    std::string reason;
  };
  const std::vector<Case> cases{
      {[] { fabric::set_multicast(2, false); }, nullptr,
       "no multicast memory: rank 2: the GPU does not support multicast"},
      {[] {}, [](int rank, CudaTeamOptions& options) { options.multicast_sums = rank != 1; },
       "no multicast memory: rank 0 lets the switch add, rank 1 does not"},
      {[] {}, [](int rank, CudaTeamOptions& options) { options.multicast_sums = rank == 1; },
       "no multicast memory: rank 1 lets the switch add, rank 0 does not"}};
  for (const Case& one : cases) {
    fabric::reset(kRanks, {});
    one.spoil();
    std::vector<std::string> reasons(kRanks);
    run(
        kRanks, 8,
        [](int rank, const std::shared_ptr<Team>& team, Board&) {
          return scatter(rank, team, false, kOdd);
        },
        [&](int rank, CudaTeamOptions& options) {
          options.without_multicast = [&reasons, rank](const std::string& r) { reasons[rank] = r; };
          if (one.change) one.change(rank, options);
        });
    EXPECT_EQ(reasons, std::vector<std::string>(kRanks, one.reason));
  }
}

// An exchange that does more than a reduce-scatter does not say that it is one.
TEST(SwitchSum, AddsOnlyWhatIsAReduceScatter) {
  fabric::reset(kRanks, {});
  run(kRanks, 9, [](int rank, const std::shared_ptr<Team>& team, Board&) -> std::string {
    const uint64_t place = 512;
    const std::vector<float> gradient(kRanks * 4, static_cast<float>(rank + 1));
    std::vector<float> output(4);
    const Slot slot = team->acquire(4 * place);
    for (bool declared : {false, true}) {
      Exchange exchange;
      exchange.what = "sum";
      exchange.landing = slot;
      for (int q = 0; q < kRanks; ++q) {
        if (q != rank) exchange.pushes.push_back({q, &gradient[4 * q], rank * place, 16});
      }
      exchange.sum.output = output.data();
      exchange.sum.place_bytes = place;
      exchange.sum.runs = {{0, 4, &gradient[4 * rank], 0}};
      exchange.sum.reduce_scatter = declared;
      gpu::forget(rank);
      output.assign(4, 0.0f);
      team->start(exchange)->wait();
      synchronize();
      if (output != std::vector<float>(4, 6.0f)) return "another sum";
      if (has(gpu::enqueued(rank), kLoadReduce) != declared) return "chosen wrongly";

      auto refused = [&](const std::function<void(Exchange&)>& spoil) {
        Exchange spoilt = exchange;
        spoil(spoilt);
        try {
          team->start(spoilt);
        } catch (const Error& error) {
          return std::string(error.what()).find("of a reduce-scatter") == std::string::npos &&
                         std::string(error.what()).find("a reduce-scatter whose") ==
                             std::string::npos
                     ? std::string("another error: ") + error.what()
                     : std::string();
        }
        return std::string("not refused");
      };
      if (!declared) continue;
      std::string wrong;
      wrong += refused([&](Exchange& e) { e.pushes[0].to = 3 * place; });
      wrong += refused([&](Exchange& e) { e.pushes[0].to += place - 15; });
      wrong += refused([&](Exchange& e) { e.pushes[0].peer = rank; });
      wrong += refused([&](Exchange& e) { e.sum.runs[0].landing = place - 12; });
      wrong += refused([&](Exchange& e) { e.sum.place_bytes = 2 * place; });
      if (!wrong.empty()) return wrong;
    }
    team->release(slot);
    return {};
  });
}

// Reduce-scatters of either kind and all-gathers use the same memory in turn, on two streams; what
// is free is overwritten at once. A rank that went on before all had read its slot, or that read
// before all had filled theirs, has wrong sums with some seeds.
TEST(SwitchSum, AnyOrderOfTheStreamsGivesTheSameSums) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    fabric::reset(kRanks, {});
    run(kRanks, seed, [&](int rank, const std::shared_ptr<Team>& team, Board&) -> std::string {
      Random random(seed);  // the same decisions on all ranks
      const CUstream streams[] = {current_stream, gpu::make_stream(rank)};
      std::vector<std::unique_ptr<Scatter>> scatters;
      std::vector<std::shared_ptr<Pending>> last(2);
      const std::vector<std::byte> poison(4096, std::byte{0xff});
      std::vector<std::vector<int>> shards;
      std::string wrong;
      int by_switch = 0;
      for (uint64_t round = 0; round < 12; ++round) {
        current_stream = streams[round % 2];
        if (last[round % 2]) last[round % 2]->wait();
        if (random.below(3) == 0) {
          constexpr uint64_t kShard = 100;
          std::vector<int>& shard = shards.emplace_back(kShard, 1000 * rank + int(round));
          const Slot slot = team->acquire(kRanks * kShard * 4);
          Exchange gather;
          gather.what = "all-gather";
          gather.landing = slot;
          for (int q = 0; q < kRanks; ++q) {
            gather.pushes.push_back({q, shard.data(), rank * kShard * 4, kShard * 4});
          }
          team->start(gather)->wait();
          synchronize();
          for (int q = 0; q < kRanks; ++q) {
            const auto* got = reinterpret_cast<const int*>(slot.data) + q * kShard;
            if (std::count(got, got + kShard, 1000 * q + int(round)) != kShard) wrong = "gathered";
          }
          team->release(slot);
        }
        // bf16 is pushed, into the same memory.
        const DType in = random.below(4) == 0 ? DType::kBFloat16 : DType::kFloat32;
        scatters.push_back(
            std::make_unique<Scatter>(random_shapes(random), rank, kRanks, round, in));
        last[round % 2] = scatters.back()->start(team);
        by_switch += in == DType::kFloat32 && scatters.back()->adds(rank);
        if (random.below(2) == 0) {
          last[round % 2]->wait();
          if (const auto slot = team->acquire_free(poison.size())) {
            device::cuda::driver().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(slot->data),
                                                 reinterpret_cast<CUdeviceptr>(poison.data()),
                                                 poison.size(), current_stream);
            team->release(*slot);
          }
        }
      }
      for (int k : {0, 1}) {
        current_stream = streams[k];
        last[k]->wait();
        synchronize();
      }
      for (size_t k = 0; k < scatters.size(); ++k) {
        if (const auto text = scatters[k]->check(); !text.empty()) {
          wrong += "round " + std::to_string(k) + ": " + text + "; ";
        }
      }
      if (std::ranges::count(gpu::enqueued(rank), kLoadReduce) != by_switch) {
        wrong += "chosen otherwise";
      }
      return wrong;
    });
  }
}

}  // namespace
}  // namespace tide::test
