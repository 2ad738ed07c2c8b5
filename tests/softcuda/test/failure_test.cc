// CUDA teams on software GPUs whose ranks die, stay away, leave or give up: every survivor says who
// it was, soon, and no stream waits for ever.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "include/tide/error.h"
#include "tests/device/ranks.h"
#include "tests/softcuda/test/team.h"

namespace tide::test {
namespace {

using device::Pending;
using device::Slot;
using device::Team;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::unique_ptr<Team> join_cuda(int rank, int size, Board& board, int timeout_ms = 20000) {
  BoardRendezvous rendezvous(board, rank);
  device::CudaTeamOptions options;
  options.timeout = milliseconds(timeout_ms);
  return join_softcuda(rank, size, rendezvous, std::move(options));
}

std::shared_ptr<Pending> gather(Team& team, const Slot& slot, uint64_t bytes,
                                std::shared_ptr<void> also_kept = nullptr) {
  auto memory =
      std::make_shared<std::vector<std::byte>>(bytes, static_cast<std::byte>(team.rank() + 1));
  device::Exchange exchange;
  exchange.what = "all-gather of layers.3";
  exchange.landing = slot;
  for (int q = 0; q < team.size(); ++q) {
    exchange.pushes.push_back({q, memory->data(), team.rank() * bytes, bytes});
  }
  exchange.keep = std::make_shared<std::pair<decltype(memory), std::shared_ptr<void>>>(
      memory, std::move(also_kept));
  return team.start(std::move(exchange));
}

// wait() only makes a stream wait: whether all went well is known when it is done. Throws
// tide::Error.
void complete(Pending& pending) {
  while (!pending.done()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  pending.wait();
}

// Runs checked all-gathers until one fails; its error.
std::string gather_until_error(Team& team, uint64_t bytes) {
  try {
    for (;;) {
      const Slot slot = team.acquire(bytes * team.size());
      const auto pending = gather(team, slot, bytes);
      complete(*pending);
      for (uint64_t i = 0; i < bytes * team.size(); ++i) {
        if (slot.data[i] != static_cast<std::byte>(i / bytes + 1)) return "wrong data";
      }
      team.release(slot);
    }
  } catch (const Error& error) {
    return error.what();
  }
}

class CudaFailure : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_softcuda()) GTEST_SKIP() << "no software GPU in this build";
  }
  // What ranks of `size` end with, each a process of its own.
  static std::vector<std::string> run(int size, const RankBody& body) {
    return run_processes(size, body, nullptr);
  }
};

TEST_F(CudaFailure, DeathAtRandomMomentsIsNamed) {
  constexpr int kSize = 4;
  Random random(11);
  for (int round = 0; round < 16; ++round) {
    const int dead = static_cast<int>(random.below(kSize));
    pid_t dead_pid = 0;
    setenv("SOFTCUDA_DELAY", round % 2 == 0 ? "0" : "200", 1);
    const auto results = run_processes(
        kSize,
        [&](int rank, Board& board) -> std::string {
          auto team = join_cuda(rank, kSize, board);
          board.set(rank, 1);
          const std::string error = gather_until_error(*team, 30000);
          synchronize();  // nothing of the current stream waits for ever
          const auto begin = steady_clock::now();
          team.reset();
          if (steady_clock::now() - begin > milliseconds(5000)) return "closing took long";
          return error;
        },
        [&](const std::vector<pid_t>& pids, Board& board) {
          dead_pid = pids[dead];
          for (int rank = 0; rank < kSize; ++rank) EXPECT_TRUE(board.await(rank));
          std::this_thread::sleep_for(std::chrono::microseconds(random.below(20000)));
          kill(dead_pid, SIGKILL);
        });
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == dead) {
        EXPECT_EQ(results[rank], "killed by signal 9");
        continue;
      }
      const std::string gone =
          "rank " + std::to_string(dead) + " (pid " + std::to_string(dead_pid) + ") is gone";
      EXPECT_TRUE(results[rank].ends_with(gone)) << round << ": " << results[rank];
    }
  }
  unsetenv("SOFTCUDA_DELAY");
}

TEST_F(CudaFailure, WhoStaysAwayIsNamedOnEveryRank) {
  const auto results = run(3, [](int rank, Board& board) -> std::string {
    auto team = join_cuda(rank, 3, board, 400);
    const Slot slot = team->acquire(3 * 1024);
    complete(*gather(*team, slot, 1024));
    std::string error;
    if (rank == 2) {
      if (!board.await(0) || !board.await(1)) return "the others wait";
    }
    try {
      complete(*gather(*team, slot, 1024));
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    board.set(rank, 1);
    board.barrier(rank);  // nobody is gone before all have seen the error
    return error;
  });
  for (const std::string& result : results) {
    EXPECT_TRUE(result.ends_with("rank 2 did not arrive within 0.4 s")) << result;
  }
}

TEST_F(CudaFailure, ARankThatGivesUpTellsWhy) {
  const std::string reason = "the rail to node 1 is down";
  const auto results = run(3, [&](int rank, Board& board) -> std::string {
    auto team = join_cuda(rank, 3, board);
    board.barrier(rank);
    if (rank == 0) team->abort(reason);
    const std::string error = gather_until_error(*team, 64);
    if (rank == 0 && team->error() != reason) return "the team says: " + team->error();
    board.barrier(rank);
    return error;
  });
  EXPECT_TRUE(results[0].ends_with(reason)) << results[0];
  for (int rank = 1; rank < 3; ++rank) {
    EXPECT_NE(results[rank].find("rank 0 (pid "), std::string::npos) << results[rank];
    EXPECT_TRUE(results[rank].ends_with(") could not go on: " + reason)) << results[rank];
  }
}

TEST_F(CudaFailure, LeavingIsNoticed) {
  const auto results = run(3, [](int rank, Board& board) -> std::string {
    auto team = join_cuda(rank, 3, board);
    if (rank == 1) team.reset();
    const auto begin = steady_clock::now();
    const std::string error = team != nullptr ? gather_until_error(*team, 1000) : "";
    const bool late = steady_clock::now() - begin > milliseconds(3000);
    board.barrier(rank);
    return late ? "late: " + error : error;
  });
  for (const int rank : {0, 2}) {
    EXPECT_NE(results[rank].find("rank 1 (pid "), std::string::npos) << results[rank];
    EXPECT_TRUE(results[rank].ends_with(") is gone")) << results[rank];
  }
}

TEST_F(CudaFailure, WhatAnExchangeReadsLivesUntilItIsDone) {
  const auto results = run(2, [](int rank, Board& board) -> std::string {
    auto team = join_cuda(rank, 2, board);
    const auto freed = std::make_shared<std::atomic<int>>(0);
    const std::thread::id here = std::this_thread::get_id();
    constexpr int kTurns = 50;
    const Slot slot = team->acquire(2 * 5000);
    bool elsewhere = false;
    for (int turn = 0; turn < kTurns; ++turn) {  // dropped at once
      gather(*team, slot, 5000, std::shared_ptr<void>(nullptr, [&, freed](void*) {
        ++*freed;
        elsewhere |= std::this_thread::get_id() != here;
      }));
    }
    complete(*gather(*team, slot, 5000));
    for (int i = 0; i < 2 * 5000; ++i) {
      if (slot.data[i] != static_cast<std::byte>(i / 5000 + 1)) return "wrong data";
    }
    team->release(slot);
    team->release(team->acquire(1));  // a later call lets go
    board.barrier(rank);
    if (elsewhere) return "freed in a thread of the team";
    return *freed == kTurns ? "" : std::to_string(*freed) + " freed";
  });
  EXPECT_EQ(results, std::vector<std::string>(2));
}

TEST_F(CudaFailure, WhatAFailedExchangeReadsLivesUntilItsStreamsAreThrough) {
  setenv("SOFTCUDA_DELAY", "20000", 1);
  const auto results = run(2, [](int rank, Board& board) -> std::string {
    auto team = join_cuda(rank, 2, board);
    const Slot slot = team->acquire(2 * 5000);
    const auto freed = std::make_shared<std::atomic<int>>(0);
    auto pending =
        gather(*team, slot, 5000, std::shared_ptr<void>(nullptr, [freed](void*) { ++*freed; }));
    team->abort("no reason");
    if (!pending->done()) return "not done";
    try {
      pending->wait();
      return "no error";
    } catch (const Error&) {
    }
    pending.reset();
    if (*freed != 0) return "freed while streams may read it";
    team.reset();
    return *freed == 1 ? "" : "not freed";
  });
  unsetenv("SOFTCUDA_DELAY");
  EXPECT_EQ(results, std::vector<std::string>(2));
}

TEST_F(CudaFailure, MemoryGoesBackWhenTheTeamCloses) {
  const auto results = run(2, [](int rank, Board& board) -> std::string {
    const auto shared = [] {
      std::ifstream maps("/proc/self/maps");
      int count = 0;
      for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != line.npos;
      return count;
    };
    join_cuda(rank, 2, board).reset();
    const int before = shared();
    for (int turn = 0; turn < 5; ++turn) {
      auto team = join_cuda(rank, 2, board);
      const Slot slot = team->acquire(3 << 20);
      complete(*gather(*team, slot, 1000));
      team->release(slot);
    }
    board.barrier(rank);
    return shared() == before ? "" : std::to_string(shared() - before) + " mappings are left";
  });
  EXPECT_EQ(results, std::vector<std::string>(2));
}

}  // namespace
}  // namespace tide::test
