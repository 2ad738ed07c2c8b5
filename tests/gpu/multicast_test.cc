// The making of multicast memory by ranks whose driver is played: all have it or none, whatever
// fails where, and nothing stays behind. No GPU, and no call of a real driver.
#include "shim/device/cuda/multicast.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/device/ranks.h"
#include "tests/gpu/fake_fabric.h"

namespace tide::test {
namespace {

using device::cuda::Driver;
using device::cuda::Lookout;
using device::cuda::make_multicast;
using device::cuda::MulticastResult;
using device::cuda::MulticastSettings;
using std::chrono::milliseconds;

constexpr int kRanks = 3;
constexpr MulticastSettings kPatient{
    .bytes = 7 << 20, .patience = milliseconds(20000), .pause = milliseconds(1)};
constexpr MulticastSettings kHasty{
    .bytes = 7 << 20, .patience = milliseconds(100), .pause = milliseconds(10)};

struct Outcome {
  bool has = false;
  std::string reason;
};

long open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

// Makes multicast memory on `ranks` ranks. All must come to the same end; with `kept`, nothing is
// checked of what is held.
Outcome make(const MulticastSettings& settings, int ranks = kRanks, bool kept = false,
             const std::function<void(int, MulticastSettings&, Driver&)>& change = nullptr) {
  const long files = open_files();
  std::vector<Outcome> outcomes(ranks);
  // Kept until the process ends, as make_multicast asks.
  static auto& drivers = *new std::vector<std::unique_ptr<Driver>>;
  std::vector<Driver*> own;
  for (int q = 0; q < ranks; ++q) {
    own.push_back(drivers.emplace_back(std::make_unique<Driver>(fabric::driver())).get());
  }
  const auto texts = run_ranks(Mode::kThreads, ranks, [&](int rank, Board& board) -> std::string {
    BoardRendezvous rendezvous(board, rank);
    std::vector<std::string> names;
    for (int q = 0; q < ranks; ++q) names.push_back("rank " + std::to_string(q));
    const Lookout lookout(
        rank, device::host::connect_peers(rank, names, rendezvous, milliseconds(20000)));
    MulticastSettings mine = settings;
    if (change) change(rank, mine, *own[rank]);
    const MulticastResult result =
        make_multicast(*own[rank], {fabric::context(rank), rank}, lookout, rendezvous, mine);
    outcomes[rank] = {result.multicast != nullptr, result.reason};
    std::string wrong;
    if (result.multicast != nullptr) {
      board.barrier(rank);
      if (result.multicast->bytes() != 2 * fabric::kMulticastGranularity) wrong = "bytes";
      if (fabric::bound_everywhere(result.multicast->address()) != result.multicast->bytes()) {
        wrong = "not bound everywhere";
      }
      if (!result.multicast->share()) wrong = "not shared";
    }
    // Nothing of the set-up lies in the sockets of those that come after it.
    std::byte message[16];
    for (int q = 0; q < ranks; ++q) {
      if (q != rank && lookout.peer(q).socket.receive(message)) wrong = "a message is left";
    }
    board.barrier(rank);
    return wrong;
  });
  for (int q = 0; q < ranks; ++q) {
    EXPECT_EQ(texts[q], "") << "rank " << q;
    EXPECT_EQ(outcomes[q].has, outcomes[0].has) << "rank " << q;
    EXPECT_EQ(outcomes[q].reason, outcomes[0].reason) << "rank " << q;
    EXPECT_EQ(outcomes[q].has, outcomes[q].reason.empty());
  }
  EXPECT_EQ(fabric::broken_rules(), "");
  if (!kept) {
    EXPECT_EQ(fabric::held(), "");
  }
  EXPECT_EQ(open_files(), files);
  return outcomes[0];
}

TEST(Multicast, IsMadeByAllRanksTogether) {
  fabric::reset(kRanks, {});
  EXPECT_TRUE(make(kPatient).has);
  EXPECT_EQ(fabric::calls("cuMulticastCreate", 0), 1);
  for (int q = 0; q < kRanks; ++q) {
    EXPECT_EQ(fabric::calls("cuMulticastCreate", q), q == 0 ? 1 : 0);
    EXPECT_EQ(fabric::calls("cuMulticastAddDevice", q), 1);
    EXPECT_EQ(fabric::calls("cuMulticastBindMem", q), 1);
    EXPECT_EQ(fabric::calls("cuMemMap", q), 1);
  }
}

TEST(Multicast, EightRanks) {
  fabric::reset(8, {{.call = "cuMulticastBindMem", .rank = 5, .times = 3}});
  EXPECT_TRUE(make(kPatient, 8).has);
  EXPECT_EQ(fabric::calls("cuMulticastBindMem", 2), 4);
}

struct Step {
  const char* call;
  bool first_rank;   // is it called there?
  bool other_ranks;  // and elsewhere?
};

// The calls of an attempt, in order.
constexpr Step kAttempt[] = {{"cuMulticastCreate", true, false},
                             {"cuMemExportToShareableHandle", true, false},
                             {"cuMemImportFromShareableHandle", false, true},
                             {"cuMulticastAddDevice", true, true},
                             {"cuMulticastBindMem", true, true},
                             {"cuMemAddressReserve", true, true},
                             {"cuMemMap", true, true},
                             {"cuMemSetAccess", true, true}};

template <class Body>
void at_each_step(Body body) {
  for (const Step& step : kAttempt) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (!(rank == 0 ? step.first_rank : step.other_ranks)) continue;
      SCOPED_TRACE(std::string(step.call) + " on rank " + std::to_string(rank));
      body(step.call, rank);
    }
  }
}

TEST(Multicast, OneRefusalForGoodStopsAllRanks) {
  at_each_step([](const char* call, int rank) {
    fabric::reset(kRanks, {{.call = call, .rank = rank, .result = CUDA_ERROR_ILLEGAL_STATE}});
    const Outcome outcome = make(kPatient);
    EXPECT_FALSE(outcome.has);
    EXPECT_NE(outcome.reason.find("rank " + std::to_string(rank) + ": cannot "), std::string::npos);
    EXPECT_NE(outcome.reason.find("CUDA_ERROR_ILLEGAL_STATE (played)"), std::string::npos)
        << outcome.reason;
    EXPECT_EQ(fabric::calls("cuMulticastCreate", 0), 1) << "no second attempt";
  });
}

TEST(Multicast, RefusalsForTheTimeBeingAreTriedAgainByAll) {
  for (CUresult result : {CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_NOT_READY}) {
    at_each_step([result](const char* call, int rank) {
      fabric::reset(kRanks, {{.call = call, .rank = rank, .result = result, .times = 2}});
      EXPECT_TRUE(make(kPatient).has);
      EXPECT_EQ(fabric::calls("cuMulticastCreate", 0), 3);
      for (int q = 1; q < kRanks; ++q) {
        EXPECT_EQ(fabric::calls("cuMulticastAddDevice", q),
                  fabric::calls("cuMulticastAddDevice", 0));
      }
    });
  }
}

TEST(Multicast, AttemptsEndInTime) {
  at_each_step([](const char* call, int rank) {
    fabric::reset(kRanks, {{.call = call, .rank = rank, .times = -1}});
    const Outcome outcome = make(kHasty);
    EXPECT_FALSE(outcome.has);
    EXPECT_NE(outcome.reason.find("CUDA_ERROR_SYSTEM_NOT_READY (played), for 0.1 s"),
              std::string::npos)
        << outcome.reason;
  });
}

TEST(Multicast, ARefusalForGoodCountsMoreThanOneForTheTimeBeing) {
  fabric::reset(
      kRanks,
      {{.call = "cuMulticastBindMem", .rank = 0, .times = -1},
       {.call = "cuMulticastBindMem", .rank = 2, .result = CUDA_ERROR_ILLEGAL_STATE, .times = -1}});
  const Outcome outcome = make(kPatient);
  EXPECT_EQ(outcome.reason,
            "no multicast memory: rank 2: cannot bind memory to a multicast object: "
            "CUDA_ERROR_ILLEGAL_STATE (played)");
}

TEST(Multicast, RanksMayBeRefusedInTurn) {
  fabric::reset(kRanks, {{.call = "cuMulticastBindMem", .rank = 0, .times = 1},
                         {.call = "cuMulticastBindMem", .rank = 1, .times = 2},
                         {.call = "cuMemMap", .rank = 2, .times = 2}});
  EXPECT_TRUE(make(kPatient).has);
  EXPECT_EQ(fabric::calls("cuMulticastCreate", 0), 5);
}

TEST(Multicast, WhatCannotBeGivenBackEndsTheAttempts) {
  fabric::reset(
      kRanks,
      {{.call = "cuMemMap", .rank = 0, .times = 1},
       {.call = "cuMulticastUnbind", .rank = 1, .result = CUDA_ERROR_INVALID_VALUE, .times = -1}});
  const Outcome outcome = make(kPatient);
  EXPECT_EQ(outcome.reason,
            "no multicast memory: rank 1: cannot give a multicast object back: CUDA_ERROR_OTHER "
            "(played)");
  EXPECT_EQ(fabric::calls("cuMulticastCreate", 0), 1);
}

TEST(Multicast, ACallThatDoesNotReturnIsLeftBehind) {
  for (const char* call : {"cuMulticastBindMem", "cuMemMap"}) {
    fabric::reset(kRanks, {{.call = call, .rank = 1, .hang = true}});
    const Outcome outcome = make(kHasty, kRanks, /*kept=*/true);
    EXPECT_FALSE(outcome.has);
    EXPECT_NE(outcome.reason.find(": no answer within 0.1 s"), std::string::npos) << outcome.reason;
    EXPECT_NE(fabric::held(), "") << "of the call that hangs";
    // When it returns after all, its thread gives everything back.
    fabric::release();
    for (int i = 0; i < 2000 && !fabric::held().empty(); ++i) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_EQ(fabric::held(), "");
    EXPECT_EQ(fabric::broken_rules(), "");
  }
}

TEST(Multicast, NoMemoryOnOneRankMeansNoneOnAll) {
  fabric::reset(kRanks, {{.call = "cuMemCreate", .rank = 1, .result = CUDA_ERROR_OUT_OF_MEMORY}});
  EXPECT_NE(make(kPatient).reason.find("rank 1: cannot make 12582912 bytes of GPU memory"),
            std::string::npos);
  EXPECT_EQ(fabric::calls("cuMulticastCreate", 0), 0);
}

TEST(Multicast, WhereItIsNotSupportedNothingIsMade) {
  fabric::reset(kRanks, {});
  fabric::set_multicast(2, false);
  EXPECT_EQ(make(kPatient).reason,
            "no multicast memory: rank 2: the GPU does not support multicast");
  fabric::reset(kRanks, {});
  fabric::set_bus(2, 0x11);
  EXPECT_EQ(make(kPatient).reason, "no multicast memory: rank 1 and rank 2 share a GPU");
  fabric::reset(1, {});
  EXPECT_EQ(make(kPatient, 1).reason, "no multicast memory: rank 0: there is only one rank");
  fabric::reset(kRanks, {});
  EXPECT_EQ(make(kPatient, kRanks, false,
                 [](int rank, MulticastSettings&, Driver& driver) {
                   if (rank == 1) driver.cuMulticastBindMem = nullptr;
                 })
                .reason,
            "no multicast memory: rank 1: the CUDA driver lacks cuMulticastBindMem");
  EXPECT_EQ(fabric::calls("cuMemCreate", 0), 0);
}

TEST(Multicast, RanksMustAskForTheSame) {
  fabric::reset(kRanks, {});
  EXPECT_EQ(make(kPatient, kRanks, false,
                 [](int rank, MulticastSettings& settings, Driver&) {
                   if (rank == 2) settings.bytes = 9 << 20;
                 })
                .reason,
            "no multicast memory: rank 0 asks for 7340032 bytes, rank 2 for 9437184");
  EXPECT_NE(make({}).reason.find("rank 0: none was asked for"), std::string::npos);
}

}  // namespace
}  // namespace tide::test
