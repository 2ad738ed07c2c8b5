// Exchanges that cannot succeed. Every survivor must say why, soon, and nothing on its GPU may wait
// for ever: after the error the device comes to rest and the process ends cleanly.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "include/tide/error.h"
#include "tests/gpu/gpu.h"

namespace tide::test {
namespace {

using device::Slot;
using device::Team;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Starts all-gathers until one fails, at most `most`; its error.
std::string gather_until_error(Team& team, const GpuGather& gather, int most) {
  try {
    for (int i = 0; i < most; ++i) {
      const Slot slot = team.acquire(gather.bytes());
      auto pending = team.start(gather.exchange(slot, "all-gather of layers.3"));
      pending->wait();
      team.release(slot);
      while (!pending->done()) {
      }
      if (!pending->error().empty()) pending->wait();
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// What the device does after `error`: nothing, when the streams were released.
std::string at_rest(const std::string& error, steady_clock::time_point begin) {
  good(cudaDeviceSynchronize());
  const double took = std::chrono::duration<double>(steady_clock::now() - begin).count();
  return took < 8 ? error : error + " after " + std::to_string(took) + " s";
}

// What every survivor's error ends with. What comes before differs: the exchange that this rank saw
// fail, or that a peer told.
std::string gone(int rank, pid_t pid) {
  return " failed: rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + ") is gone";
}

void expect_end(const std::string& text, const std::string& end) {
  EXPECT_TRUE(text.size() >= end.size() &&
              text.compare(text.size() - end.size(), end.size(), end) == 0)
      << text << "\ndoes not end with\n"
      << end;
}

void kill_one(int size, bool in_midst, int connections) {
  if (connections > 0) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(connections).c_str(), 1);
  }
  const int dead = size / 2;
  pid_t dead_pid = 0;
  const auto results = run_processes(
      size,
      [&](int rank, Board& board) -> std::string {
        take_gpu(rank);
        // More streams than hardware channels, all of them in use.
        GpuStream streams[16];
        GpuMemory scratch(1 << 20);
        current_stream() = streams[0];
        auto team = join_gpu(rank, size, board, 15000);
        const GpuGather gather({3'000'000, 17}, rank, size);
        gather.fill(1, streams[0]);
        for (auto& stream : streams) {
          const Slot slot = team->acquire(gather.bytes());
          current_stream() = stream;
          team->start(gather.exchange(slot, "all-gather of layers.2"))->wait();
          team->release(slot);
        }
        good(cudaDeviceSynchronize());
        board.barrier(rank);
        if (rank == dead) {
          if (in_midst) {
            const Slot slot = team->acquire(gather.bytes());
            team->start(gather.exchange(slot, "all-gather of layers.3"));
          }
          raise(SIGKILL);
        }
        const auto begin = steady_clock::now();
        std::string error;
        // Without a look at the results, as a job that is far ahead of its GPU.
        try {
          for (int i = 0; i < 40; ++i) {
            const Slot slot = team->acquire(gather.bytes());
            current_stream() = streams[i % 16];
            team->start(gather.exchange(slot, "all-gather of layers.3"))->wait();
            good(cudaMemsetAsync(scratch.as(), i, scratch.bytes(), current_stream()));
            team->release(slot);
          }
        } catch (const Error& caught) {
          error = caught.what();
        }
        if (error.empty()) error = gather_until_error(*team, gather, 100000);
        const std::string whole = at_rest(error, begin);
        const std::string of_team = team->error();
        if (error.find(of_team.substr(of_team.find(" failed: "))) == std::string::npos) {
          return error + "; the team says: " + of_team;
        }
        return whole;
      },
      [&](const std::vector<pid_t>& pids, Board&) { dead_pid = pids[dead]; });
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  for (int rank = 0; rank < size; ++rank) {
    expect_end(results[rank], rank == dead ? "killed by signal 9" : gone(dead, dead_pid));
  }
}

TEST(Death, BeforeItStartsTheExchange) { kill_one(4, false, 0); }
TEST(Death, InTheMidstOfTheExchange) { kill_one(4, true, 0); }
TEST(Death, OfOneOfTwo) { kill_one(2, false, 0); }
// All streams of a process share one hardware channel: what was enqueued behind a stream that waits
// cannot run, so only a store of the CPU can release it.
TEST(Death, WithOneHardwareChannel) { kill_one(4, false, 1); }

// More exchanges than the driver's queues hold, and a peer that starts them too but whose stream
// does not come to them: start() blocks in the driver until the watchdog, which needs nothing that
// start() holds, releases the stream.
TEST(Death, WhileStartIsBlockedInTheDriver) {
  const int size = 2;
  pid_t dead_pid = 0;
  const auto results = run_processes(
      size,
      [&](int rank, Board& board) -> std::string {
        take_gpu(rank);
        GpuStream stream;
        current_stream() = stream;
        auto team = join_gpu(rank, size, board, 15000);
        const GpuGather gather({1000, 17}, rank, size);
        Hold hold;
        const Slot slot = team->acquire(gather.bytes());
        team->start(gather.exchange(slot, "all-gather of layers.2"))->wait();
        good(cudaDeviceSynchronize());
        board.barrier(rank);
        if (rank == 1) {
          hold.put_on(stream);
          std::thread([] {
            std::this_thread::sleep_for(seconds(2));
            raise(SIGKILL);
          }).detach();
        }
        const auto begin = steady_clock::now();
        std::string error;
        try {
          for (int i = 0; i < 4000; ++i) {
            team->start(gather.exchange(slot, "all-gather of layers.3"))->wait();
          }
        } catch (const Error& caught) {
          error = team->error();
        }
        return at_rest(error, begin);
      },
      [&](const std::vector<pid_t>& pids, Board&) { dead_pid = pids[1]; });
  expect_end(results[0], gone(1, dead_pid));
  EXPECT_EQ(results[1], "killed by signal 9");
}

TEST(Absence, EndsAtTheDeadline) {
  const int size = 2;
  const auto results = run_gpu_ranks(size, [&](int rank, Board& board) -> std::string {
    GpuStream stream;
    current_stream() = stream;
    auto team = join_gpu(rank, size, board, 1500);
    const GpuGather gather({1000}, rank, size);
    if (rank == 1) board.barrier(rank);
    const auto begin = steady_clock::now();
    const std::string error = at_rest(gather_until_error(*team, gather, 1), begin);
    if (rank == 0) board.barrier(rank);
    return error;
  });
  expect_end(results[0], "all-gather of layers.3 failed: rank 1 did not arrive within 1.5 s");
  // It came too late: what the peer pushed when it gave up does not pass for an exchange.
  // Whether it hears of that when it asks for a slot or later is a matter of time.
  EXPECT_TRUE(results[1].starts_with("no landing slot: ") ||
              results[1].starts_with("all-gather of layers.3 cannot start: "))
      << results[1];
  expect_end(results[1], "an exchange of a peer failed: rank 1 did not arrive within 1.5 s");
}

TEST(Divergence, OfSizesIsNamed) {
  const int size = 2;
  const auto results = run_gpu_ranks(size, [&](int rank, Board& board) -> std::string {
    GpuStream stream;
    current_stream() = stream;
    auto team = join_gpu(rank, size, board, 15000);
    const GpuGather gather({rank == 0 ? 1000u : 2000u}, rank, size);
    board.barrier(rank);
    const auto begin = steady_clock::now();
    const std::string error = at_rest(gather_until_error(*team, gather, 1), begin);
    board.barrier(rank);
    const std::string named =
        "all-gather of layers.3 failed: the ranks diverged: exchange 1 has " +
        std::to_string(rank == 0 ? 2048 : 4096) + " bytes to land on rank " + std::to_string(rank) +
        " and " + std::to_string(rank == 0 ? 4096 : 2048) + " on rank " + std::to_string(1 - rank);
    const std::string told = "all-gather of layers.3 failed: rank " + std::to_string(1 - rank);
    return error == named || error.rfind(told, 0) == 0 ? "" : error;
  });
  EXPECT_EQ(results, std::vector<std::string>(size));
}

// A job that leaves through exit() after an error, with its team and streams as they are.
TEST(Death, TheProcessEndsCleanlyAfterwards) {
  const int size = 2;
  const auto results = run_gpu_ranks(size, [&](int rank, Board& board) -> std::string {
    static GpuStream stream;
    current_stream() = stream;
    auto* team = join_gpu(rank, size, board, 15000).release();
    static const GpuGather gather({1000}, rank, size);
    board.barrier(rank);
    if (rank == 1) raise(SIGKILL);
    const std::string error = gather_until_error(*team, gather, 2);
    std::exit(error.find("is gone") == std::string::npos ? 3 : 0);
  });
  EXPECT_EQ(results[0], "");
  EXPECT_EQ(results[1], "killed by signal 9");
}

}  // namespace
}  // namespace tide::test
