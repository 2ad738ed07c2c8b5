// Exchanges that succeed: all-gathers and reduce-scatters of every shape, many in flight, slots
// that are held, reused and outgrown, and a long run that must not grow.
#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>

#include "include/tide/error.h"
#include "shim/device/host/team.h"
#include "tests/device/ranks.h"
#include "tests/softcuda/test/team.h"

namespace tide::test {
namespace {

using device::DType;
using device::Exchange;
using device::Pending;
using device::Slot;
using device::Team;

std::vector<std::string> all_good(int size) { return std::vector<std::string>(size); }

Exchange exchange_of(const std::string& what, const Slot& landing = {}) {
  Exchange result;
  result.what = what;
  result.landing = landing;
  return result;
}

// Byte i of the shard of parameter p of rank q in round `round`.
std::byte pattern(int q, uint64_t p, uint64_t i, uint64_t round) {
  return static_cast<std::byte>((i * 31 + q * 7 + p * 131 + round * 17 + (i >> 8)) & 0xff);
}

// An all-gather of parameters whose shards have `shards` bytes, parameter-major.
struct Gather {
  Gather(const std::vector<uint64_t>& shard_bytes, int rank, int size, uint64_t round)
      : shards(shard_bytes), size(size), round(round) {
    for (uint64_t p = 0; p < shards.size(); ++p) {
      auto shard = std::make_shared<std::vector<std::byte>>(shards[p]);
      for (uint64_t i = 0; i < shards[p]; ++i) (*shard)[i] = pattern(rank, p, i, round);
      sources.push_back(shard);
      bases.push_back(total);
      total += (shards[p] * size + 255) / 256 * 256;
    }
  }

  Exchange exchange(int rank, const Slot& slot) const {
    Exchange result = exchange_of("all-gather " + std::to_string(round), slot);
    for (uint64_t p = 0; p < shards.size(); ++p) {
      for (int q = 0; q < size; ++q) {
        result.pushes.push_back({q, sources[p]->data(), bases[p] + rank * shards[p], shards[p]});
      }
    }
    result.keep = std::make_shared<decltype(sources)>(sources);
    return result;
  }

  std::string check(const Slot& slot) const {
    for (uint64_t p = 0; p < shards.size(); ++p) {
      for (int q = 0; q < size; ++q) {
        for (uint64_t i = 0; i < shards[p]; ++i) {
          if (slot.data[bases[p] + q * shards[p] + i] != pattern(q, p, i, round)) {
            return "round " + std::to_string(round) + ": parameter " + std::to_string(p) +
                   ", shard " + std::to_string(q) + ", byte " + std::to_string(i);
          }
        }
      }
    }
    return {};
  }

  std::vector<uint64_t> shards;
  int size;
  uint64_t round;
  uint64_t total = 0;
  std::vector<uint64_t> bases;
  std::vector<std::shared_ptr<std::vector<std::byte>>> sources;
};

// Small integers, exact in every dtype: element i of what rank q has for rank d.
float value(int q, int d, uint64_t i, uint64_t round) {
  return static_cast<float>((i * 5 + q * 3 + d + round) % 64);
}

// A reduce-scatter of `count` bf16 elements a rank into fp32, the last two of them padding.
struct Scatter {
  Scatter(uint64_t elements, int rank, int size, uint64_t round_number)
      : count(elements),
        padding(std::min<uint64_t>(elements, 2)),
        round(round_number),
        source(std::make_shared<std::vector<uint16_t>>(elements * size)),
        output(elements, -1.0f) {
    for (int d = 0; d < size; ++d) {
      for (uint64_t i = 0; i < count; ++i) {
        const auto bits = std::bit_cast<uint32_t>(value(rank, d, i, round));
        (*source)[d * count + i] = static_cast<uint16_t>(bits >> 16);
      }
    }
  }

  uint64_t landing_bytes(int size) const { return size * count * 2; }

  Exchange exchange(int rank, int size, const Slot& slot) {
    Exchange result = exchange_of("reduce-scatter " + std::to_string(round), slot);
    for (int d = 0; d < size; ++d) {
      if (d != rank) {
        result.pushes.push_back(
            {d, source->data() + d * count, rank * count * 2, (count - padding) * 2});
      }
    }
    result.sum = {.in = DType::kBFloat16,
                  .out = DType::kFloat32,
                  .output = output.data(),
                  .place_bytes = count * 2,
                  .factor = 0.5f,
                  .reduce_scatter = true,
                  .runs = {{.out = 0,
                            .count = count - padding,
                            .own = source->data() + rank * count,
                            .landing = 0}},
                  .zeros = {{count - padding, padding}}};
    result.keep = source;
    return result;
  }

  std::string check(int rank, int size) const {
    for (uint64_t i = 0; i < count; ++i) {
      float expected = 0.0f;
      for (int q = 0; i < count - padding && q < size; ++q) expected += value(q, rank, i, round);
      if (output[i] != expected * 0.5f) {
        return "round " + std::to_string(round) + ": element " + std::to_string(i) + " is " +
               std::to_string(output[i]);
      }
    }
    return {};
  }

  uint64_t count, padding, round;
  std::shared_ptr<std::vector<uint16_t>> source;
  std::vector<float> output;
};

// Ranks of the host device, and of the CUDA device on software GPUs: processes share one, each
// thread has its own. one_channel: as with CUDA_DEVICE_MAX_CONNECTIONS=1.
struct Ranks {
  Mode mode;
  bool cuda = false;
  bool one_channel = false;
};
void PrintTo(const Ranks&, std::ostream*) {}  // the name says it

class EveryTeam : public testing::TestWithParam<Ranks> {
 protected:
  void SetUp() override {
    if (kThreadSanitizer && GetParam().mode == Mode::kProcesses) {
      GTEST_SKIP() << "ThreadSanitizer sees both ends of an exchange where ranks are threads";
    }
    if (GetParam().cuda && !have_softcuda()) GTEST_SKIP() << "no software GPU in this build";
    const bool threads = GetParam().mode == Mode::kThreads;
    setenv("SOFTCUDA_DEVICES", threads ? "8" : "1", 1);
    setenv("SOFTCUDA_THREADS", threads ? "1" : "0", 1);
    setenv("SOFTCUDA_CHANNELS", GetParam().one_channel ? "1" : "0", 1);
  }
  static std::vector<std::string> run_ranks(int size, const RankBody& body) {
    return test::run_ranks(GetParam().mode, size, body);
  }
  static std::unique_ptr<Team> join(int rank, int size, Board& board) {
    if (!GetParam().cuda) return test::join(rank, size, board);
    BoardRendezvous rendezvous(board, rank);
    device::CudaTeamOptions options;
    options.timeout = std::chrono::milliseconds(20000);
    options.ordinal = GetParam().mode == Mode::kThreads ? rank : 0;
    options.part_bytes = 50'000;  // so that there are reduce-scatters in one part and in several
    return join_softcuda(rank, size, rendezvous, std::move(options));
  }
};
// What concerns the host device alone.
class HostModes : public EveryTeam {};

std::string name_of(const testing::TestParamInfo<Ranks>& info) {
  return std::string(info.param.cuda ? "Cuda" : "") +
         (info.param.mode == Mode::kProcesses ? "Processes" : "Threads") +
         (info.param.one_channel ? "OneChannel" : "");
}
// Processes first: a driver does not work in a child of a process that has used it.
INSTANTIATE_TEST_SUITE_P(Processes, EveryTeam,
                         testing::Values(Ranks{Mode::kProcesses}, Ranks{Mode::kProcesses, true},
                                         Ranks{Mode::kProcesses, true, true}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Threads, EveryTeam,
                         testing::Values(Ranks{Mode::kThreads}, Ranks{Mode::kThreads, true}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Ranks, HostModes,
                         testing::Values(Ranks{Mode::kProcesses}, Ranks{Mode::kThreads}), name_of);

// Until what the exchange leaves is there for the CPU.
void finish(Pending& pending) {
  pending.wait();
  synchronize();
}

TEST_P(EveryTeam, AllGatherOfOddShards) {
  for (int size = 1; size <= 8; ++size) {
    auto results = run_ranks(size, [&](int rank, Board& board) -> std::string {
      auto team = join(rank, size, board);
      const std::vector<std::vector<uint64_t>> groups{
          {1}, {3, 255, 0, 256}, {70001, 2, 4097}, {0}, {5, 1 << 18, 77}};
      for (uint64_t round = 0; round < groups.size(); ++round) {
        Gather gather(groups[round], rank, size, round);
        Slot slot = team->acquire(gather.total);
        if (reinterpret_cast<uintptr_t>(slot.data) % 256 != 0) return "slot not aligned";
        auto pending = team->start(gather.exchange(rank, slot));
        finish(*pending);
        if (!pending->done() || !pending->error().empty()) return "not done after wait";
        if (auto wrong = gather.check(slot); !wrong.empty()) return wrong;
        team->release(slot);
      }
      if (team->stats().exchanges != groups.size()) return "exchanges not counted";
      if (team->stats().slots_in_use != 0) return "a slot is in use";
      return {};
    });
    EXPECT_EQ(results, all_good(size));
  }
}

TEST_P(EveryTeam, ReduceScatterOfOddCounts) {
  for (int size = 1; size <= 8; ++size) {
    auto results = run_ranks(size, [&](int rank, Board& board) -> std::string {
      auto team = join(rank, size, board);
      uint64_t round = 0;
      for (uint64_t count : {1, 2, 3, 17, 1023, 1025, 40003}) {
        Scatter scatter(count, rank, size, ++round);
        Slot slot = team->acquire(scatter.landing_bytes(size));
        auto pending = team->start(scatter.exchange(rank, size, slot));
        team->release(slot);  // it stays until the exchange is complete
        finish(*pending);
        if (auto wrong = scatter.check(rank, size); !wrong.empty()) return wrong;
      }
      return {};
    });
    EXPECT_EQ(results, all_good(size));
  }
}

// Runs of more than 1 MiB go past the caches.
// Places that are no ranks': the sum begins with what `own` holds, or with place 0.
TEST_P(EveryTeam, SumOverPlaces) {
  constexpr int kPlaces = 3, kCount = 1001;
  auto results = run_ranks(2, [](int rank, Board& board) -> std::string {
    auto team = join(rank, 2, board);
    std::vector<float> source(kPlaces * kCount), total(kCount, 0.0f);
    for (int i = 0; i < kPlaces * kCount; ++i) source[i] = static_cast<float>(i % 977) + rank;
    for (const bool first : {true, false}) {
      device::Exchange exchange;
      exchange.what = "sum";
      exchange.landing = team->acquire(kPlaces * kCount * 4);
      // Rank 0 writes places 0 and 2, rank 1 place 1, on both ranks.
      for (int place = rank; place < kPlaces; place += 2) {
        for (int q = 0; q < 2; ++q) {
          exchange.pushes.push_back({.peer = q,
                                     .from = source.data() + place * kCount,
                                     .to = uint64_t{4} * place * kCount,
                                     .bytes = uint64_t{4} * kCount});
        }
      }
      exchange.sum.output = total.data();
      exchange.sum.place_bytes = uint64_t{4} * kCount;
      exchange.sum.factor = first ? 1.0f : 0.5f;
      exchange.sum.sources = kPlaces;
      exchange.sum.runs = {{.out = 0, .count = kCount, .own = first ? nullptr : total.data()}};
      const device::Slot slot = exchange.landing;
      finish(*team->start(std::move(exchange)));
      team->release(slot);
    }
    for (int i = 0; i < kCount; ++i) {
      float expected = 0;
      for (int place = 0; place < kPlaces; ++place) {
        expected += static_cast<float>((place * kCount + i) % 977) + static_cast<float>(place % 2);
      }
      if (total[i] != expected) return "element " + std::to_string(i) + " differs";
    }
    return "";
  });
  EXPECT_EQ(results, std::vector<std::string>(2));
}

TEST_P(EveryTeam, LargeRuns) {
  const int size = 3;
  auto results = run_ranks(size, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, size, board);
    for (uint64_t round = 0; round < 3; ++round) {
      Gather gather({(1 << 20) + 13, 5, (1 << 20) + 1}, rank, size, round);
      Scatter scatter(600001, rank, size, round);
      Slot weights = team->acquire(gather.total);
      Slot grads = team->acquire(scatter.landing_bytes(size));
      auto gathered = team->start(gather.exchange(rank, weights));
      auto scattered = team->start(scatter.exchange(rank, size, grads));
      finish(*scattered);
      if (!gathered->done()) return "exchanges are not complete in their order";
      if (auto wrong = gather.check(weights); !wrong.empty()) return wrong;
      if (auto wrong = scatter.check(rank, size); !wrong.empty()) return wrong;
      team->release(weights);
      team->release(grads);
    }
    return {};
  });
  EXPECT_EQ(results, all_good(size));
}

TEST_P(EveryTeam, ManyInFlightWithRandomTiming) {
  const int size = 4;
  auto results = run_ranks(size, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, size, board);
    Random shape(1), timing(rank + 10);
    uint64_t round = 0;
    for (int batch = 0; batch < 12; ++batch) {
      struct Flight {
        std::unique_ptr<Gather> gather;
        std::unique_ptr<Scatter> scatter;
        Slot slot;
        std::shared_ptr<Pending> pending;
      };
      std::vector<Flight> flights(16);
      for (Flight& flight : flights) {
        ++round;
        if (shape.below(2) == 0) {
          flight.gather = std::make_unique<Gather>(
              std::vector<uint64_t>{shape.below(9000), shape.below(9000)}, rank, size, round);
          flight.slot = team->acquire(flight.gather->total);
          flight.pending = team->start(flight.gather->exchange(rank, flight.slot));
        } else {
          flight.scatter = std::make_unique<Scatter>(shape.below(5000), rank, size, round);
          flight.slot = team->acquire(flight.scatter->landing_bytes(size));
          flight.pending = team->start(flight.scatter->exchange(rank, size, flight.slot));
        }
        if (timing.below(8) == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(timing.below(3000)));
        }
      }
      while (!flights.empty()) {
        const uint64_t next = timing.below(flights.size());
        Flight& flight = flights[next];
        finish(*flight.pending);
        const std::string wrong =
            flight.gather ? flight.gather->check(flight.slot) : flight.scatter->check(rank, size);
        if (!wrong.empty()) return wrong;
        team->release(flight.slot);
        flights.erase(flights.begin() + static_cast<long>(next));
      }
    }
    return {};
  });
  EXPECT_EQ(results, all_good(size));
}

// The second exchange of a slot must not be granted while the first one is being summed.
TEST_P(EveryTeam, OneSlotForQueuedExchanges) {
  const int size = 3;
  auto results = run_ranks(size, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, size, board);
    std::vector<std::unique_ptr<Scatter>> scatters;
    std::vector<std::shared_ptr<Pending>> pendings;
    Slot slot = team->acquire(3 * 30000 * 2);
    for (int round = 0; round < 20; ++round) {
      scatters.push_back(std::make_unique<Scatter>(30000, rank, size, round));
      pendings.push_back(team->start(scatters.back()->exchange(rank, size, slot)));
    }
    for (int round = 0; round < 20; ++round) {
      finish(*pendings[round]);
      if (auto wrong = scatters[round]->check(rank, size); !wrong.empty()) return wrong;
    }
    return {};
  });
  EXPECT_EQ(results, all_good(size));
}

TEST_P(HostModes, SlotsAreHeldReusedAndOutgrown) {
  const int size = 2;
  auto results = run_ranks(size, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, size, board);
    Slot a = team->acquire(100000), b = team->acquire(100000);
    if (a.data == b.data || a.segment == b.segment) return "one slot given twice";
    team->release(a);
    Slot c = team->acquire(90000);
    if (c.segment != a.segment) return "a free slot was not reused";
    team->release(b);
    Slot d = team->acquire(10000);
    if (d.segment == b.segment) return "10,000 bytes took a slot of 100,000";
    Slot e = team->acquire(200000);
    if (e.bytes < 200000) return "slot too small";
    if (team->stats().slots != 4 || team->stats().slots_in_use != 3) return "wrong count";
    team->release(b);  // a second time: nothing happens
    team->release(Slot{.data = nullptr, .bytes = 0, .segment = 99, .offset = 0});
    Slot f = team->acquire(100000), g = team->acquire(100000);
    if (f.segment == g.segment) return "one slot given twice after a double release";
    // What lies in a held slot stays while others are used.
    std::memset(c.data, 0x5a, 90000);
    Gather gather({50000}, rank, size, 1);
    team->start(gather.exchange(rank, f))->wait();
    if (auto wrong = gather.check(f); !wrong.empty()) return wrong;
    for (int i = 0; i < 90000; ++i) {
      if (c.data[i] != std::byte{0x5a}) return "a held slot was written";
    }
    return {};
  });
  EXPECT_EQ(results, all_good(size));
}

TEST_P(HostModes, FreeSlotsAreLentAndNoneIsMade) {
  const int size = 2;
  auto results = run_ranks(size, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, size, board);
    if (team->acquire_free(1000)) return "a slot of a team that has none";
    const Slot a = team->acquire(100000);
    if (team->acquire_free(100000)) return "a slot that is in use";
    const auto before = std::chrono::steady_clock::now();
    const auto pending = team->start(Gather({50000}, rank, size, 1).exchange(rank, a));
    team->release(a);  // free once the exchange is over
    pending->wait();
    const auto finished = pending->finished();
    if (finished < before || finished > std::chrono::steady_clock::now())
      return "the exchange was complete before it began, or will be later";
    if (team->acquire_free(a.bytes + 1)) return "a slot that is too small";
    if (team->acquire_free(a.bytes / 4)) return "a slot that is much too large";
    const auto lent = team->acquire_free(100000);
    if (!lent || lent->data != a.data) return "the free slot was not lent";
    if (team->acquire_free(100000)) return "one slot lent twice";
    if (team->stats().slots != 1 || team->stats().slots_in_use != 1) return "wrong count";
    team->release(*lent);
    if (team->stats().slots_in_use != 0) return "not given back";
    return {};
  });
  EXPECT_EQ(results, all_good(size));
}

TEST_P(HostModes, KeptMemoryIsDroppedByCallers) {
  const int size = 2;
  auto results = run_ranks(size, [&](int rank, Board& board) -> std::string {
    struct Kept {
      explicit Kept(std::thread::id& id) : dropped_by(id) {}
      ~Kept() { dropped_by = std::this_thread::get_id(); }
      std::thread::id& dropped_by;
    };
    auto team = join(rank, size, board);
    const auto here = std::this_thread::get_id();
    std::thread::id waited{}, abandoned{}, late{};

    Exchange first = exchange_of("waited for");
    first.keep = std::make_shared<Kept>(waited);
    auto pending = team->start(std::move(first));
    pending->wait();
    if (waited != here) return "not dropped in wait()";

    // Rank 1 comes late, so that rank 0's exchange is surely running when its Pending goes.
    if (rank == 1 && !board.await(0)) return "no sign of rank 0";
    Exchange second = exchange_of("abandoned");
    second.keep = std::make_shared<Kept>(abandoned);
    pending = team->start(std::move(second));
    pending.reset();
    if (rank == 0) {
      if (abandoned != std::thread::id{}) return "dropped while the exchange ran";
      board.set(0, 1);
    }
    Exchange third = exchange_of("after it");
    third.keep = std::make_shared<Kept>(late);
    team->start(std::move(third))->wait();
    team->acquire(1);
    if (abandoned != here) return "an abandoned one was not dropped by the next caller";
    if (late != here) return "the third was not dropped here";

    Exchange last = exchange_of("with the team");
    last.keep = std::make_shared<Kept>(late);
    late = {};
    board.barrier(rank);
    if (rank == 0) {  // rank 1 never joins it
      team->start(std::move(last));
      team.reset();
      if (late != here) return "not dropped with the team";
    } else {
      board.barrier(rank);
      return {};
    }
    board.barrier(rank);
    return {};
  });
  EXPECT_EQ(results, all_good(size));
}

TEST(HostTeam, RefusesWhatDoesNotFit) {
  auto results = run_ranks(Mode::kThreads, 2, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, 2, board);
    const Slot slot = team->acquire(4096);
    std::vector<float> memory(1024);
    auto refused = [&](const std::function<void(Exchange&)>& spoil, const std::string& part) {
      Exchange exchange = exchange_of("all-gather of x", slot);
      exchange.pushes = {{rank, memory.data(), 0, 4096}};
      exchange.sum = {.in = DType::kFloat32,
                      .out = DType::kFloat32,
                      .output = memory.data(),
                      .place_bytes = 2048,
                      .factor = 1.0f,
                      .runs = {{0, 512, memory.data(), 0}},
                      .zeros = {}};
      spoil(exchange);
      try {
        team->start(exchange);
      } catch (const Error& error) {
        const std::string text = error.what();
        if (text.find("all-gather of x cannot start: ") != 0) return "text: " + text;
        return text.find(part) == std::string::npos ? "text: " + text : std::string();
      }
      return "not refused: " + part;
    };
    std::string wrong;
    wrong += refused([](Exchange& e) { e.pushes[0].peer = 2; }, "rank 2 of 2");
    wrong += refused([](Exchange& e) { e.pushes[0].peer = -1; }, "rank -1 of 2");
    wrong += refused([](Exchange& e) { e.pushes[0].from = nullptr; }, "from no memory");
    wrong += refused([](Exchange& e) { e.pushes[0].to = 1; }, "own landing slot");
    wrong += refused([](Exchange& e) { e.pushes[0].to = ~0ull - 10; }, "own landing slot");
    wrong += refused([](Exchange& e) { e.sum.out = DType::kFloat16; }, "not fp16");
    wrong += refused([](Exchange& e) { e.sum.output = nullptr; }, "without an output");
    wrong += refused([](Exchange& e) { e.sum.runs[0].own = nullptr; }, "own source");
    wrong += refused([](Exchange& e) { e.sum.runs[0].count = 1025; }, "past the end");
    wrong += refused([](Exchange& e) { e.sum.runs[0].landing = ~0ull - 7; }, "past the end");
    wrong += refused([](Exchange& e) { e.landing.segment = 7; }, "not one that this team gave");
    wrong += refused([](Exchange& e) { e.landing.bytes = 8192; }, "not one that this team gave");
    wrong += refused([](Exchange& e) { e.landing.data += 1; }, "not one that this team gave");
    team->release(slot);
    wrong += refused([](Exchange&) {}, "not one that this team gave");
    // None of them counted: the next exchange is the first.
    Exchange good = exchange_of("barrier");
    team->start(good)->wait();
    return wrong;
  });
  EXPECT_EQ(results, all_good(2));
}

TEST(HostTeam, RefusesWrongArguments) {
  Board board(1);
  BoardRendezvous alone(board, 0);
  EXPECT_THROW(device::make_host_team(1, 1, alone), Error);
  EXPECT_THROW(device::make_host_team(-1, 1, alone), Error);
  EXPECT_THROW(device::make_host_team(0, 0, alone), Error);
  EXPECT_THROW(device::make_host_team(0, 1, alone, {.timeout = {}, .names = {}}), Error);
  EXPECT_THROW(device::make_host_team(
                   0, 1, alone, {.timeout = std::chrono::milliseconds(1), .names = {"a", "b"}}),
               Error);
  auto team = device::make_host_team(0, 1, alone);
  EXPECT_THROW(team->acquire(~0ull), Error);
  EXPECT_EQ(team->size(), 1);
}

int count_entries(const char* folder) {
  int count = 0;
  DIR* dir = opendir(folder);
  if (dir == nullptr) return -1;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

// A line of /proc/self/status, in its own unit (KiB, threads).
long status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(field + ":", 0) == 0) return std::atol(line.c_str() + field.size() + 1);
  }
  return -1;
}

TEST(HostTeam, FiveThousandExchangesGrowNothing) {
  const int size = 4;
  const Mode mode = kThreadSanitizer ? Mode::kThreads : Mode::kProcesses;
  const int shm_before = count_entries("/dev/shm");
  auto results = run_ranks(mode, size, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, size, board);
    struct Usage {
      uint64_t slot_bytes, slots;
      int descriptors;
      long threads, memory;
    };
    auto usage = [&] {
      Usage result{};
      for (int turn = 0; turn < size; ++turn) {  // counting opens a descriptor
        board.barrier(rank);
        if (turn != rank) continue;
        const auto stats = team->stats();
        result = {stats.slot_bytes, stats.slots, count_entries("/proc/self/fd"), status("Threads"),
                  status("VmRSS")};
      }
      board.barrier(rank);
      return result;
    };
    Gather gather({3001, 517}, rank, size, 0);
    Scatter scatter(1203, rank, size, 0);
    Usage before{};
    for (int i = 0; i < 2500; ++i) {
      if (i == 100) before = usage();
      Slot weights = team->acquire(gather.total);
      auto gathered = team->start(gather.exchange(rank, weights));
      Slot grads = team->acquire(scatter.landing_bytes(size));
      auto scattered = team->start(scatter.exchange(rank, size, grads));
      team->release(grads);
      gathered->wait();
      scattered->wait();
      if (i % 100 == 0) {
        if (auto wrong = gather.check(weights); !wrong.empty()) return wrong;
        if (auto wrong = scatter.check(rank, size); !wrong.empty()) return wrong;
      }
      team->release(weights);
    }
    const Usage after = usage();
    if (after.slots != before.slots || after.slot_bytes != before.slot_bytes) return "slots grew";
    if (after.descriptors != before.descriptors) return "descriptors grew";
    if (after.threads != before.threads) return "threads grew";
      // The heap may round up; the sanitizers keep freed memory in quarantine.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (after.memory > before.memory + 512) {
      return "memory grew by " + std::to_string(after.memory - before.memory) + " KiB";
    }
#endif
    if (team->stats().exchanges != 5000) return "exchanges not counted";
    return {};
  });
  EXPECT_EQ(results, all_good(size));
  EXPECT_EQ(count_entries("/dev/shm"), shm_before);
}

}  // namespace
}  // namespace tide::test
