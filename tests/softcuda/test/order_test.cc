// Exchanges beside callers' streams that are held up: nothing is pushed before it is written there,
// nothing is overwritten before it is read there, in no slot, this rank's own included.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <utility>

#include "include/tide/error.h"
#include "shim/device/cuda/context.h"
#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/memory.h"
#include "shim/device/cuda/team.h"
#include "tests/device/ranks.h"

namespace tide::test {
namespace {

using namespace device::cuda;
using device::Slot;

constexpr int kSize = 3;
constexpr uint64_t kBytes = 100'000;  // of each rank

using Bytes = std::vector<std::byte>;

// A rank in a process of its own, with streams of a caller.
class Rank {
 public:
  Rank(int rank, Board& board) : source(kBytes) {
    BoardRendezvous rendezvous(board, rank);
    device::CudaTeamOptions options;
    options.timeout = std::chrono::milliseconds(20000);
    options.current_stream = [this] { return stream; };
    team = device::make_cuda_team(rank, kSize, rendezvous, std::move(options));
  }

  // `stream` stops here until go_on().
  void hold() {
    CUstreamBatchMemOpParams wait{};
    wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    wait.waitValue.address = pinned_.address();
    wait.waitValue.value64 = 1;
    wait.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    check(driver().cuStreamBatchMemOp(stream, 1, &wait, 0), "hold a stream up");
  }
  // After a while for what does not wait for the stream.
  void go_on() {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    __atomic_store_n(reinterpret_cast<uint64_t*>(memory_->data()), 1, __ATOMIC_RELEASE);
  }
  void copy(std::byte* to, const std::byte* from, uint64_t bytes) {
    check(driver().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                 reinterpret_cast<CUdeviceptr>(from), bytes, stream),
          "copy");
  }
  void synchronize() { check(driver().cuCtxSynchronize(), "wait for all streams"); }

  std::shared_ptr<device::Pending> gather(const Slot& slot) {
    device::Exchange exchange;
    exchange.what = "all-gather";
    exchange.landing = slot;
    for (int q = 0; q < kSize; ++q) {
      exchange.pushes.push_back({q, source.data(), team->rank() * kBytes, kBytes});
    }
    return team->start(std::move(exchange));
  }

 private:
  const std::shared_ptr<Context> context_ = std::make_shared<Context>(0);
  const Current current_{*context_};
  const std::shared_ptr<device::host::Mapping> memory_ = device::host::create_memory(4096).mapping;
  const PinnedMapping pinned_{context_, memory_};

 public:
  const Stream first{context_}, second{context_};
  CUstream stream = first.get();  // the current one
  Bytes source;
  std::unique_ptr<device::Team> team;
};

// Value `first` + q from rank q?
std::string check_gathered(const std::byte* gathered, int first) {
  for (int q = 0; q < kSize; ++q) {
    for (uint64_t i = 0; i < kBytes; ++i) {
      if (gathered[q * kBytes + i] != static_cast<std::byte>(first + q))
        return "byte " + std::to_string(i) + " of rank " + std::to_string(q);
    }
  }
  return {};
}

std::vector<std::string> run(const std::function<std::string(int, Rank&)>& body) {
  return run_processes(
      kSize,
      [&](int number, Board& board) {
        Rank rank(number, board);
        const std::string wrong = body(number, rank);
        board.barrier(number);
        return wrong;
      },
      nullptr);
}

TEST(Order, WhatACallersStreamWritesIsPushedAfterwards) {
  const auto results = run([](int number, Rank& rank) {
    const Slot slot = rank.team->acquire(kSize * kBytes);
    const Bytes written(kBytes, static_cast<std::byte>(1 + number));
    rank.hold();
    rank.copy(rank.source.data(), written.data(), kBytes);
    const auto pending = rank.gather(slot);
    rank.go_on();
    pending->wait();
    rank.synchronize();
    return check_gathered(slot.data, 1);
  });
  EXPECT_EQ(results, std::vector<std::string>(kSize));
}

TEST(Order, ASlotIsWrittenAgainAfterACallersStreamHasReadIt) {
  const auto results = run([](int number, Rank& rank) -> std::string {
    const Slot slot = rank.team->acquire(kSize * kBytes);
    rank.source.assign(kBytes, static_cast<std::byte>(1 + number));
    rank.gather(slot)->wait();
    rank.synchronize();
    rank.hold();
    Bytes read(kSize * kBytes);
    rank.copy(read.data(), slot.data, read.size());
    rank.team->release(slot);

    rank.stream = rank.second.get();
    const Slot again = rank.team->acquire(kSize * kBytes);
    if (again.data != slot.data) return "another slot";
    rank.source.assign(kBytes, static_cast<std::byte>(101 + number));
    const auto pending = rank.gather(again);
    rank.go_on();
    pending->wait();
    rank.synchronize();
    const std::string wrong = check_gathered(read.data(), 1);
    return wrong.empty() ? check_gathered(again.data, 101) : "read: " + wrong;
  });
  EXPECT_EQ(results, std::vector<std::string>(kSize));
}

// The driver's way to copy, which refuses the call after `left` more.
int left = 0;
decltype(Driver::copy_batch) copy_batch = nullptr;
CUresult refuse_one(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                    CUmemcpyAttributes* attributes, size_t* first, size_t attributes_count,
                    CUstream stream) {
  if (left-- == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  return copy_batch(to, from, bytes, count, attributes, first, attributes_count, stream);
}

TEST(Order, WhatWasEnqueuedBeforeARefusalComesToItsEnd) {
  for (int refused = 0; refused < kSize; ++refused) {  // the last one is into its own slot
    const auto results = run([&](int number, Rank& rank) -> std::string {
      if (number == 1) {
        left = refused;
        auto& table = const_cast<Driver&>(driver());
        copy_batch = std::exchange(table.copy_batch, refuse_one);
      }
      const Slot slot = rank.team->acquire(kSize * kBytes);
      std::string error;
      rank.hold();
      try {
        const auto pending = rank.gather(slot);
        rank.go_on();
        pending->wait();
        while (!pending->done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        error = pending->error();
      } catch (const Error& thrown) {
        error = thrown.what();
      }
      rank.go_on();
      rank.synchronize();
      if (number == 1) static_cast<void>(rank.team.release());  // it would wait for the rest
      return error.find("enqueue pushes: CUDA_ERROR_OUT_OF_MEMORY") != error.npos ? "" : error;
    });
    EXPECT_EQ(results, std::vector<std::string>(kSize)) << refused;
  }
}

}  // namespace
}  // namespace tide::test
