// Exchanges that cannot succeed: ranks that die, stay away, leave, fork, or write garbage. Every
// survivor must say which rank it was, soon.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <thread>

#include "include/tide/error.h"
#include "shim/device/host/bootstrap.h"
#include "shim/device/host/team.h"
#include "tests/device/ranks.h"

namespace tide::test {
namespace {

using device::Exchange;
using device::Pending;
using device::Push;
using device::Slot;
using device::Team;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// An all-gather of `bytes` a rank, from memory that the exchange keeps.
std::shared_ptr<Pending> gather(Team& team, const Slot& slot, uint64_t bytes,
                                const std::string& what = "all-gather of layers.3") {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  Exchange exchange;
  exchange.what = what;
  exchange.landing = slot;
  for (int q = 0; q < team.size(); ++q) {
    exchange.pushes.push_back({q, memory->data(), team.rank() * bytes, bytes});
  }
  exchange.keep = memory;
  return team.start(std::move(exchange));
}

// Runs all-gathers until one fails, at most `most`; its error, or "no error".
std::string gather_until_error(Team& team, uint64_t bytes, int most) {
  try {
    for (int i = 0; i < most; ++i) {
      Slot slot = team.acquire(bytes * team.size());
      auto pending = gather(team, slot, bytes);
      pending->wait();
      team.release(slot);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string seconds_since(steady_clock::time_point begin) {
  return std::to_string(std::chrono::duration<double>(steady_clock::now() - begin).count()) + " s";
}

std::string gone(int rank, pid_t pid) {
  return "all-gather of layers.3 failed: rank " + std::to_string(rank) + " (pid " +
         std::to_string(pid) + ") is gone";
}

class Processes : public testing::Test {
 protected:
  void SetUp() override {
    if (kThreadSanitizer) GTEST_SKIP() << "forks ranks that start threads";
  }
};
using Death = Processes;
using Fork = Processes;

// Where a rank dies, as seen by its own program.
enum class Phase { kIdle, kStarted, kBetween, kReleased };

TEST_F(Death, InEachPhaseNamesTheDeadRank) {
  const int size = 4, dead = 2;
  for (Phase phase : {Phase::kIdle, Phase::kStarted, Phase::kBetween, Phase::kReleased}) {
    SCOPED_TRACE(static_cast<int>(phase));
    pid_t dead_pid = 0;
    auto results = run_processes(
        size,
        [&](int rank, Board& board) -> std::string {
          auto team = join(rank, size, board, 15000);
          const uint64_t bytes = 1 << 20;
          Slot slot = team->acquire(bytes * size);
          gather(*team, slot, bytes)->wait();
          board.barrier(rank);
          if (rank == dead) {
            if (phase == Phase::kIdle) raise(SIGKILL);
            auto pending = gather(*team, slot, bytes);
            if (phase == Phase::kStarted) raise(SIGKILL);
            pending->wait();
            if (phase == Phase::kBetween) raise(SIGKILL);
            team->release(slot);
            raise(SIGKILL);
          }
          const auto begin = steady_clock::now();
          const std::string error = gather_until_error(*team, bytes, 1000);
          if (steady_clock::now() - begin > milliseconds(5000)) {
            return error + " after " + seconds_since(begin);
          }
          if (team->error() != error) return "the team says: " + team->error();
          try {
            gather(*team, slot, bytes, "all-gather of layers.4");
            return "started after a failure";
          } catch (const Error& later) {
            if (later.what() != "all-gather of layers.4 cannot start: " + error) {
              return std::string("later: ") + later.what();
            }
          }
          return error;
        },
        [&](const std::vector<pid_t>& pids, Board&) { dead_pid = pids[dead]; });
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(results[rank], rank == dead ? "killed by signal 9" : gone(dead, dead_pid));
    }
  }
}

TEST_F(Death, AtRandomMoments) {
  const int size = 4;
  Random random(7);
  for (int round = 0; round < 12; ++round) {
    const int dead = static_cast<int>(random.below(size));
    pid_t dead_pid = 0;
    auto results = run_processes(
        size,
        [&](int rank, Board& board) -> std::string {
          auto team = join(rank, size, board, 15000);
          board.set(rank, 1);
          return gather_until_error(*team, 300000, 1000000);
        },
        [&](const std::vector<pid_t>& pids, Board& board) {
          dead_pid = pids[dead];
          for (int rank = 0; rank < size; ++rank) EXPECT_TRUE(board.await(rank));
          std::this_thread::sleep_for(std::chrono::microseconds(random.below(30000)));
          kill(dead_pid, SIGKILL);
        });
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(results[rank], rank == dead ? "killed by signal 9" : gone(dead, dead_pid));
    }
  }
}

TEST_F(Death, LeavesNothingInShm) {
  const auto entries = [] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  const auto before = entries();
  auto results = run_processes(
      2,
      [&](int rank, Board& board) -> std::string {
        auto team = join(rank, 2, board);
        Slot slot = team->acquire(1 << 20);
        gather(*team, slot, 1 << 19)->wait();
        if (entries() != before) return "something in /dev/shm while it runs";
        board.barrier(rank);
        raise(SIGKILL);
        return {};
      },
      nullptr);
  EXPECT_EQ(results, std::vector<std::string>(2, "killed by signal 9"));
  EXPECT_EQ(entries(), before);
}

// A rank that did its part and exited is no error for those who still work on theirs.
TEST_F(Death, AfterItsPartIsNoError) {
  const int size = 3;
  for (int round = 0; round < 20; ++round) {
    auto results = run_processes(
        size,
        [&](int rank, Board& board) -> std::string {
          auto team = join(rank, size, board);
          if (rank == 0) std::this_thread::sleep_for(milliseconds(30));
          // A slot the peers have not seen: its descriptor may be read after its sender has gone.
          Slot slot = team->acquire(3 * 100000);
          gather(*team, slot, 100000)->wait();
          if (rank != 0) _exit(0);
          return {};
        },
        nullptr);
    EXPECT_EQ(results, std::vector<std::string>(size));
  }
}

class Absence : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    if (kThreadSanitizer && GetParam() == Mode::kProcesses) GTEST_SKIP();
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Absence, testing::Values(Mode::kProcesses, Mode::kThreads),
                         [](const auto& info) {
                           return info.param == Mode::kProcesses ? "Processes" : "Threads";
                         });

TEST_P(Absence, TimesOutAndIsNamedOnEveryRank) {
  const int size = 4, absent = 2;
  auto results = run_ranks(GetParam(), size, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, size, board, 400);
    Slot slot = team->acquire(4096);
    gather(*team, slot, 1024)->wait();
    if (rank == absent) {
      for (int q = 0; q < size; ++q) {
        if (q != absent && !board.await(q)) return "the others wait";
      }
    }
    const auto begin = steady_clock::now();
    std::string error;
    try {
      gather(*team, slot, 1024)->wait();
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    const auto took = steady_clock::now() - begin;
    if (rank != absent && (took < milliseconds(300) || took > milliseconds(5000))) {
      return error + " after " + seconds_since(begin);
    }
    board.set(rank, 1);
    board.barrier(rank);  // nobody is gone before all have seen the error
    return error;
  });
  // The rank that comes after the others gave up hears the same.
  for (const std::string& result : results) {
    EXPECT_EQ(result, "all-gather of layers.3 failed: rank 2 did not arrive within 0.4 s");
  }
}

TEST_P(Absence, AnExchangeMayHaveItsOwnTimeout) {
  auto results = run_ranks(GetParam(), 2, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, 2, board);
    std::string error;
    if (rank == 0) {
      Exchange exchange;
      exchange.what = "barrier";
      exchange.timeout = milliseconds(100);
      auto pending = team->start(exchange);
      try {
        pending->wait();
      } catch (const Error& thrown) {
        error = thrown.what();
      }
      if (error != pending->error() || !pending->done()) return "wait() and error() differ";
      try {
        pending->wait();
        return "a second wait() did not throw";
      } catch (const Error& thrown) {
        if (error != thrown.what()) return "a second wait() threw another error";
      }
    }
    board.barrier(rank);
    return error;
  });
  EXPECT_EQ(results[0], "barrier failed: rank 1 did not arrive within 0.1 s");
  EXPECT_EQ(results[1], "");
}

// A rank that leaves (its script raised) while others wait: no timeout is spent.
TEST_P(Absence, LeavingIsNoticed) {
  auto results = run_ranks(GetParam(), 3, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, 3, board);
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(50));
      team.reset();
      board.barrier(rank);
      return {};
    }
    Slot slot = team->acquire(4096);
    const auto begin = steady_clock::now();
    std::string error;
    try {
      gather(*team, slot, 1000)->wait();
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    if (steady_clock::now() - begin > milliseconds(3000)) return seconds_since(begin);
    board.barrier(rank);
    return error.find("rank 1 (pid ") != std::string::npos &&
                   error.find(") is gone") != std::string::npos
               ? ""
               : error;
  });
  EXPECT_EQ(results, std::vector<std::string>(3));
}

TEST_P(Absence, ARankThatGivesUpStopsAll) {
  auto results = run_ranks(GetParam(), 3, [](int rank, Board& board) -> std::string {
    auto team = join(rank, 3, board);
    const Slot slot = team->acquire(3 * 64);
    const std::string reason = "the rail to node 1 is down";
    std::shared_ptr<Pending> pending;
    if (rank != 1) pending = gather(*team, slot, 64);
    if (rank == 0) team->abort(reason);
    board.barrier(rank);
    if (rank == 1) {
      try {
        gather(*team, slot, 64)->wait();
      } catch (const Error& error) {
        board.barrier(rank);
        return std::string(error.what()).find("rank 0 (pid ") != std::string::npos
                   ? ""
                   : std::string("rank 1: ") + error.what();
      }
      return "rank 1 went on";
    }
    std::string told = "no error";
    try {
      pending->wait();
    } catch (const Error& error) {
      told = error.what();
    }
    const bool own = told == "all-gather of layers.3 failed: " + reason && team->error() == reason;
    const bool peers = told.find("rank 0 (pid ") != std::string::npos &&
                       told.ends_with(") could not go on: " + reason);
    board.barrier(rank);
    return (rank == 0 ? own : peers) ? "" : told;
  });
  EXPECT_EQ(results, std::vector<std::string>(3));
}

TEST_P(Absence, DestructionIsPromptWithExchangesPending) {
  auto results = run_ranks(GetParam(), 2, [&](int rank, Board& board) -> std::string {
    auto team = join(rank, 2, board, 60000);
    if (rank == 0) {
      Slot slot = team->acquire(2000);
      auto first = gather(*team, slot, 1000);
      auto second = gather(*team, slot, 1000, "all-gather of layers.4");
      std::this_thread::sleep_for(milliseconds(30));
      const auto begin = steady_clock::now();
      team.reset();
      if (steady_clock::now() - begin > milliseconds(1000)) return "slow";
      if (!first->done() || !second->done()) return "a Pending of a closed team is not done";
      board.barrier(rank);
      return second->error();
    }
    board.barrier(rank);
    return {};
  });
  EXPECT_EQ(results[0],
            "all-gather of layers.4 failed: the team was closed before it was complete");
  EXPECT_EQ(results[1], "");
}

TEST_F(Fork, AChildDoesNotHideADeathAndCannotHarm) {
  pid_t pid = 0;
  auto results = run_processes(
      3,
      [&](int rank, Board& board) -> std::string {
        auto team = join(rank, 3, board, 15000);
        Slot slot = team->acquire(1 << 20);
        auto pending = gather(*team, slot, 1000);
        pending->wait();
        if (rank == 1) {
          const pid_t child = fork();
          if (child == 0) {  // as a data loader: it outlives the rank
            try {
              team->acquire(10);
              board.set(10, 2);
            } catch (const Error&) {
              board.set(10, 1);
            }
            try {
              pending->wait();
              board.set(11, 2);
            } catch (const Error&) {
              board.set(11, 1);
            }
            team->release(slot);
            const bool quiet = team->stats().slots == 0 && pending->done();
            pending.reset();
            team.reset();
            board.set(12, quiet ? 1 : 2);
            while (board.get(13) == 0) std::this_thread::sleep_for(milliseconds(1));
            _exit(0);
          }
          if (!board.await(12)) return "the child hangs";
          // The child took nothing away.
          gather(*team, slot, 1000)->wait();
          raise(SIGKILL);
        }
        gather(*team, slot, 1000)->wait();
        const std::string error = gather_until_error(*team, 1000, 2);
        board.set(rank, 1);
        return error;
      },
      [&](const std::vector<pid_t>& pids, Board& board) {
        pid = pids[1];
        board.await(0);
        board.await(2);
        EXPECT_EQ(board.get(10), 1u);
        EXPECT_EQ(board.get(11), 1u);
        EXPECT_EQ(board.get(12), 1u);
        board.set(13, 1);
      });
  EXPECT_EQ(results[0], gone(1, pid));
  EXPECT_EQ(results[1], "killed by signal 9");
  EXPECT_EQ(results[2], gone(1, pid));
}

// Rank 1 meets rank 0 as any rank does, then writes what no rank writes.
class Garbage : public testing::Test {
 protected:
  using Rogue = std::function<void(device::host::Peer& victim, device::host::Inbox& inbox)>;

  // What rank 0's first exchange ends with, its timeout being 300 ms.
  static std::string after(const Rogue& rogue) {
    return run_ranks(Mode::kThreads, 2, [&](int rank, Board& board) -> std::string {
      if (rank == 0) {
        auto team = join(rank, 2, board, 300);
        board.barrier(rank);
        Slot slot = team->acquire(8192);
        std::string error = "no error";
        try {
          gather(*team, slot, 4096)->wait();
        } catch (const Error& thrown) {
          error = thrown.what();
        }
        board.barrier(rank);
        return error;
      }
      BoardRendezvous rendezvous(board, rank);
      auto peers =
          device::host::connect_peers(rank, {"rank 0", "rank 1"}, rendezvous, milliseconds(5000));
      rogue(peers[0], peers[0].block.from(1));
      peers[0].block.ring();
      board.barrier(rank);
      board.barrier(rank);
      return {};
    })[0];
  }

  static void grant(device::host::Inbox& inbox, uint64_t segment, uint64_t offset, uint64_t bytes) {
    device::host::Grant& grant = inbox.grants[1];
    grant.segment = segment;
    grant.offset = offset;
    grant.bytes = bytes;
    grant.sequence = 1;
  }

  // Sends memory as an honest rank does, but says `bytes`.
  static void send(device::host::Peer& victim, uint64_t segment, uint64_t bytes, int fd) {
    const uint64_t message[] = {segment, bytes};
    EXPECT_TRUE(victim.socket.send(std::as_bytes(std::span(message)), fd));
  }
};

TEST_F(Garbage, HonestDataPass) {
  auto memory = device::host::create_memory(8192);
  EXPECT_EQ(after([&](auto& victim, auto& inbox) {
              send(victim, 5, 8192, memory.fd.get());
              grant(inbox, 5, 0, 8192);
              inbox.arrived = 1;
            }),
            "no error");
}

TEST_F(Garbage, IsRefused) {
  const std::string failed = "all-gather of layers.3 failed: rank 1 ";
  auto memory = device::host::create_memory(8192);
  const auto granting = [&](uint64_t offset, uint64_t bytes) {
    return after([&](auto& victim, auto& inbox) {
      send(victim, 5, 8192, memory.fd.get());
      grant(inbox, 5, offset, bytes);
    });
  };
  EXPECT_EQ(granting(0, 8193), failed + "granted 8193 bytes at 0 of a segment of 8192");
  EXPECT_EQ(granting(8193, 0), failed + "granted 0 bytes at 8193 of a segment of 8192");
  EXPECT_EQ(granting(4096, ~0ull - 4095),
            failed + "granted 18446744073709547520 bytes at 4096 of a segment of 8192");
  EXPECT_EQ(granting(0, 4097), failed + "did not arrive within 0.3 s");
  EXPECT_EQ(granting(0, 4095), failed +
                                   "granted 4095 bytes, and rank 0 has 4096 for byte 0 of them: "
                                   "they disagree");
  EXPECT_EQ(after([&](auto&, auto& inbox) { grant(inbox, 6, 0, 8192); }),
            failed +
                "granted memory whose descriptor did not come (it was not sent, or the limit of "
                "open files is reached: ulimit -n)");
  EXPECT_EQ(after([&](auto&, auto& inbox) { inbox.grants[1].sequence = 77; }),
            failed + "granted memory for a later exchange");
  EXPECT_EQ(after([&](auto&, auto& inbox) { inbox.arrived = ~0ull; }),
            failed + "says it finished an exchange that has not begun");
  EXPECT_EQ(after([&](auto&, auto& inbox) { inbox.grants[1].sequence = 0; }),
            failed + "did not arrive within 0.3 s");
  for (uint64_t record : {~uint64_t{0}, uint64_t{1}, uint64_t{1} << 56 | uint64_t{2} << 32}) {
    EXPECT_NE(after([&](auto&, auto& inbox) {
                inbox.failure = record;
              }).find(") wrote what cannot be into the memory of its peers"),
              std::string::npos)
        << record;
  }
}

TEST_F(Garbage, DescriptorsThatAreNoSealedMemoryAreRefused) {
  const std::string failed = "all-gather of layers.3 failed: cannot map the memory of rank 1: ";
  const auto sending = [&](int fd, uint64_t bytes) {
    return after([&](auto& victim, auto& inbox) {
      send(victim, 5, bytes, fd);
      grant(inbox, 5, 0, 8192);
    });
  };
  auto memory = device::host::create_memory(8192);
  EXPECT_EQ(sending(memory.fd.get(), 4096),
            failed + "what arrived is not a sealed memfd of 4096 bytes");
  EXPECT_EQ(sending(memory.fd.get(), uint64_t{1} << 40),
            failed + "what arrived is not a sealed memfd of 1099511627776 bytes");
  device::host::Descriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_EQ(sending(unsealed.get(), 8192),
            failed + "what arrived is not a sealed memfd of 8192 bytes");
  device::host::Descriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(sending(null.get(), 0), failed + "what arrived is not a sealed memfd of 0 bytes");
}

// Every survivor hears of a rank that another one found at fault.
TEST_F(Garbage, IsToldToTheOthers) {
  auto results = run_ranks(Mode::kThreads, 3, [&](int rank, Board& board) -> std::string {
    if (rank < 2) {
      auto team = join(rank, 3, board, 10000);
      board.barrier(rank);
      Slot slot = team->acquire(3 * 4096);
      std::string error;
      try {
        gather(*team, slot, 4096)->wait();
      } catch (const Error& thrown) {
        error = thrown.what();
      }
      board.barrier(rank);
      return error;
    }
    BoardRendezvous rendezvous(board, rank);
    auto peers = device::host::connect_peers(rank, {"rank 0", "rank 1", "rank 2"}, rendezvous,
                                             milliseconds(5000));
    peers[0].block.from(2).arrived = 9;  // rank 1 gets nothing wrong, and nothing at all
    board.barrier(rank);
    board.barrier(rank);
    return {};
  });
  EXPECT_EQ(results[0],
            "all-gather of layers.3 failed: rank 2 says it finished an exchange that has not "
            "begun");
  EXPECT_EQ(results[1].find("all-gather of layers.3 failed: rank 2 (pid "), 0u) << results[1];
}

// The kernel reports the unread message as a reset before it hands out what the dead end had sent.
TEST(Socket, WhatADeadPeerSentIsStillThere) {
  using device::host::Socket;
  const std::string name = "tide-test-" + std::to_string(getpid());
  Socket listener = Socket::listener(name, 1);
  Socket ours = Socket::connected(name);
  std::optional<Socket> dead = listener.accept();
  ASSERT_TRUE(dead);
  std::byte message[8] = {std::byte{42}};
  ASSERT_TRUE(dead->send(message, 0));
  ASSERT_TRUE(ours.send(message, 0));  // is never read
  dead.reset();
  std::byte received[8] = {};
  EXPECT_TRUE(ours.receive(received));
  EXPECT_EQ(received[0], std::byte{42});
  EXPECT_FALSE(ours.receive(received));
}

TEST(Bootstrap, AllRanksHearWhyThereIsNoTeam) {
  auto results = run_ranks(Mode::kThreads, 3, [&](int rank, Board& board) -> std::string {
    struct Spoiled : BoardRendezvous {
      using BoardRendezvous::BoardRendezvous;
      std::vector<std::string> exchange(const std::string& mine) override {
        auto all = BoardRendezvous::exchange(mine);
        if (round++ == 0) all[0] = "+tide-host-1 tide-nobody 0123456789abcdef0123456789abcdef";
        return all;
      }
      int round = 0;
    };
    Spoiled rendezvous(board, rank);
    try {
      device::make_host_team(rank, 3, rendezvous);
    } catch (const Error& error) {
      return error.what();
    }
    return "a team";
  });
  for (const std::string& result : results) {
    EXPECT_EQ(result,
              "no host team: rank 1 cannot reach rank 0: cannot connect to its unix socket: "
              "Connection refused; the ranks of a host team must run on one machine, as one user, "
              "and share its network namespace");
  }
}

TEST(Bootstrap, AnotherVersionIsNamed) {
  auto results = run_ranks(Mode::kThreads, 2, [&](int rank, Board& board) -> std::string {
    if (rank == 0) {  // a Tide of another time
      board.exchange(rank, "+tide-host-0 somewhere");
      return board.exchange(rank, "+")[1];
    }
    try {
      join(rank, 2, board);
    } catch (const Error& error) {
      return error.what();
    }
    return "a team";
  });
  EXPECT_NE(results[1].find("rank 1 cannot reach rank 0: it speaks another version of Tide"),
            std::string::npos)
      << results[1];
}

TEST(Bootstrap, StrangersAreLetGo) {
  auto results = run_ranks(Mode::kThreads, 2, [&](int rank, Board& board) -> std::string {
    struct Intruded : BoardRendezvous {
      using BoardRendezvous::BoardRendezvous;
      std::vector<std::string> exchange(const std::string& mine) override {
        auto all = BoardRendezvous::exchange(mine);
        if (round++ == 0) {
          // Connects before the honest ranks, once silent and once with a wrong greeting.
          const std::string address = mine.substr(mine.find(' ') + 1);
          const std::string name = address.substr(0, address.find(' '));
          strangers.push_back(device::host::Socket::connected(name));
          strangers.push_back(device::host::Socket::connected(name));
          const std::vector<std::byte> greeting(48);
          EXPECT_TRUE(strangers.back().send(greeting, 0));
          BoardRendezvous::exchange("");
        }
        return all;
      }
      int round = 0;
      std::vector<device::host::Socket> strangers;
    };
    Intruded rendezvous(board, rank);
    auto team = device::make_host_team(rank, 2, rendezvous);
    Slot slot = team->acquire(2000);
    gather(*team, slot, 1000)->wait();
    return {};
  });
  EXPECT_EQ(results, std::vector<std::string>(2));
}

}  // namespace
}  // namespace tide::test
