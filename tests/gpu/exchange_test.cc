// Exchanges between ranks that share one GPU: shapes, growth, streams. What a stream reads is
// checked by kernels on that stream, so that an order that is missing shows as wrong bytes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <utility>

#include "include/tide/error.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/kernels.h"

namespace tide::test {
namespace {

using device::Pending;
using device::Slot;
using device::Team;

// Small enough that the tests make reduce-scatters in one part and in several.
constexpr uint64_t kPartBytes = 100'000;

std::vector<std::string> all_good(int size) { return std::vector<std::string>(size); }

std::string bad(const char* what, uint64_t count) {
  return count == 0 ? "" : std::to_string(count) + " wrong " + what;
}

uint64_t read_counter(const GpuMemory& counter) {
  uint64_t value = 0;
  good(cudaDeviceSynchronize());
  good(cudaMemcpy(&value, counter.as(), sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

// Fills a slot, before its first exchange or behind its last reader: a byte that the next exchange
// does not write shows, and as a gradient it is a NaN.
void poison(const Slot& slot, cudaStream_t stream) {
  if (slot.bytes > 0) good(cudaMemsetAsync(slot.data, 0xff, slot.bytes, stream));
}

class Sizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Sizes, testing::Values(1, 2, 4, 8));

TEST_P(Sizes, AllGatherAndReduceScatterOfOddShapes) {
  const int size = GetParam();
  const auto results = run_gpu_ranks(size, [&](int rank, Board& board) -> std::string {
    GpuStream stream;
    current_stream() = stream;
    GpuMemory wrong(16);
    fill(wrong, 0);
    auto team = join_gpu(rank, size, board, 0, kPartBytes);
    const std::vector<std::vector<uint64_t>> groups{{1}, {3, 255, 0, 256}, {70001, 2, 4097},
                                                    {0}, {5, 1 << 20, 77}, {9'000'001}};
    uint64_t round = 0;
    for (const auto& group : groups) {
      const GpuGather gather(group, rank, size);
      gather.fill(++round, stream);
      const Slot slot = team->acquire(gather.bytes());
      poison(slot, stream);
      auto pending = team->start(gather.exchange(slot, "all-gather"));
      pending->wait();
      gather.check(slot, round, wrong.as<uint64_t>(), stream);
      team->release(slot);
      good(cudaStreamSynchronize(stream));
      if (!pending->done() || !pending->error().empty()) return "not done: " + pending->error();
    }
    if (auto text = bad("bytes", read_counter(wrong)); !text.empty()) return text;
    for (uint64_t count : {1, 2, 3, 1000, 4097, 3'000'001}) {
      const GpuScatter scatter(count, rank, size);
      scatter.fill(++round, stream);
      const Slot slot = team->acquire(scatter.bytes());
      poison(slot, stream);
      auto pending = team->start(scatter.exchange(slot, "reduce-scatter"));
      pending->wait();
      team->release(slot);
      scatter.check(round, wrong.as<uint64_t>(), stream);
      good(cudaStreamSynchronize(stream));
    }
    if (auto text = bad("sums", read_counter(wrong)); !text.empty()) return text;
    const auto stats = team->stats();
    if (stats.exchanges != 12) return std::to_string(stats.exchanges) + " exchanges";
    if (stats.slots_in_use != 0) return "a slot is in use";
    board.barrier(rank);
    return {};
  });
  EXPECT_EQ(results, all_good(size));
}

// Random sequences as FSDP2 makes them: shards filled on one stream, gathered on a second, used on
// a third in between kernels of random length, gradients reduced on a fourth; slots are held, given
// back while they are still read, and filled with garbage by their last reader. A push that came
// too early would be overwritten or overwrite, one that came too late would not be there.
class Hazards : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Hazards, testing::Values(2, 4, 8));

struct Held {
  int group;
  uint64_t round;
  Slot slot;
  std::shared_ptr<Pending> pending;
};

class Job {
 public:
  Job(int rank, int size, Board& board)
      : rank_(rank), size_(size), wrong_(16), team_(join_gpu(rank, size, board, 0, kPartBytes)) {
    fill(wrong_, 0);
    for (const std::vector<uint64_t>& shards : {std::vector<uint64_t>{3, 40'001, 256},
                                                {1'000'000, 77},
                                                {250'000, 250'000, 250'001},
                                                {1},
                                                {2'000'003}}) {
      gathers_.push_back(std::make_unique<GpuGather>(shards, rank, size));
      gathered_.emplace_back();
    }
    for (uint64_t count : {70'001, 3, 500'000}) {
      scatters_.push_back(std::make_unique<GpuScatter>(count, rank, size));
      scattered_.emplace_back();
    }
  }

  // The same `common` on all ranks; `own` differs.
  void step(Random& common, Random& own) {
    if (own.below(3) == 0) delay(static_cast<int>(own.below(150)), streams_[own.below(4)]);
    const uint64_t kind = common.below(10);
    if (kind < 4 && held_.size() < 4) {
      gather(static_cast<int>(common.below(gathers_.size())));
    } else if (kind < 8 && !held_.empty()) {
      use(common.below(held_.size()), own);
    } else {
      scatter(static_cast<int>(common.below(scatters_.size())));
    }
  }

  std::string finish() {
    Random none(1);
    while (!held_.empty()) use(0, none);
    const uint64_t wrong = read_counter(wrong_);
    return bad("values", wrong);
  }

  Team& team() { return *team_; }

 private:
  void gather(int group) {
    ++round_;
    // The shards are read by the last gather of this group.
    current_stream() = copy_in();
    if (gathered_[group]) gathered_[group]->wait();
    gathers_[group]->fill(round_, copy_in());
    streams_[1].after(copy_in());
    current_stream() = streams_[1];
    const Slot slot = team_->acquire(gathers_[group]->bytes());
    auto pending = team_->start(gathers_[group]->exchange(slot, "all-gather"));
    gathered_[group] = pending;
    held_.push_back({group, round_, slot, pending});
  }

  void use(size_t which, Random& own) {
    const Held held = held_[which];
    held_.erase(held_.begin() + static_cast<long>(which));
    current_stream() = compute();
    held.pending->wait();
    if (own.below(2) == 0) delay(static_cast<int>(own.below(100)), compute());
    gathers_[held.group]->check(held.slot, held.round, wrong_.as<uint64_t>(), compute());
    poison(held.slot, compute());
    team_->release(held.slot);
  }

  void scatter(int which) {
    ++round_;
    const GpuScatter& scatter = *scatters_[which];
    current_stream() = compute();
    if (scattered_[which]) scattered_[which]->wait();
    scatter.fill(round_, compute());
    streams_[3].after(compute());
    current_stream() = streams_[3];
    const Slot slot = team_->acquire(scatter.bytes());
    scattered_[which] = team_->start(scatter.exchange(slot, "reduce-scatter"));
    scattered_[which]->wait();
    scatter.check(round_, wrong_.as<uint64_t>(), streams_[3]);
    poison(slot, streams_[3]);
    team_->release(slot);
    compute().after(streams_[3]);
  }

  GpuStream& copy_in() { return streams_[0]; }
  GpuStream& compute() { return streams_[2]; }

  const int rank_;
  const int size_;
  GpuStream streams_[4];  // copy-in, all-gather, compute, reduce-scatter
  GpuMemory wrong_;
  std::unique_ptr<Team> team_;
  std::vector<std::unique_ptr<GpuGather>> gathers_;
  std::vector<std::unique_ptr<GpuScatter>> scatters_;
  std::vector<std::shared_ptr<Pending>> gathered_, scattered_;
  std::vector<Held> held_;
  uint64_t round_ = 0;
};

TEST_P(Hazards, RandomOperationsReadWhatWasSent) {
  const int size = GetParam();
  const int steps = under_sanitizer() ? 100 : 1000;  // there a step takes most of a second
  const auto results = run_gpu_ranks(size, [&](int rank, Board& board) -> std::string {
    Job job(rank, size, board);
    Random common(23), own(100 + rank);
    uint64_t bytes = 0;
    for (int i = 0; i < steps; ++i) {
      job.step(common, own);
      if (i == steps / 2) bytes = job.team().stats().slot_bytes;
    }
    if (auto text = job.finish(); !text.empty()) return text;
    if (job.team().stats().slot_bytes > 2 * bytes) return "slots grew without end";
    board.barrier(rank);
    return {};
  });
  EXPECT_EQ(results, all_good(size));
}

TEST(Streams, AsynchronousCallsDoNotHoldTheCallersStreamUp) {
  if (under_sanitizer()) {
    GTEST_SKIP() << "compute-sanitizer (CUDA 13.0, memcheck and racecheck) makes calls wait for "
                    "what their stream holds";
  }
  const int size = 2;
  const auto results = run_gpu_ranks(size, [&](int rank, Board& board) -> std::string {
    GpuStream stream;
    current_stream() = stream;
    auto team = join_gpu(rank, size, board);
    const GpuGather gather({1000}, rank, size);
    gather.fill(1, stream);
    const Slot slot = team->acquire(gather.bytes());
    Hold hold;
    if (rank == 1) hold.put_on(stream);
    const auto pending = team->start(gather.exchange(slot, "all-gather"));
    if (rank == 0) {
      good(cudaStreamSynchronize(stream));  // rank 1's stream has not come to its part
      if (pending->done()) return "done before the peer's stream came to it";
    }
    board.barrier(rank);
    hold.end();
    pending->wait();
    good(cudaStreamSynchronize(stream));
    if (!pending->done()) return "not done";
    board.barrier(rank);
    return {};
  });
  EXPECT_EQ(results, all_good(size));
}

TEST(Streams, ACaptureIsRefused) {
  const auto results = run_gpu_ranks(1, [](int rank, Board& board) -> std::string {
    GpuStream stream;
    current_stream() = stream;
    auto team = join_gpu(rank, 1, board);
    const GpuGather gather({1000}, rank, 1);
    const Slot slot = team->acquire(gather.bytes());
    good(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    std::string error;
    try {
      team->start(gather.exchange(slot, "all-gather"));
    } catch (const Error& caught) {
      error = caught.what();
    }
    cudaGraph_t graph;
    good(cudaStreamEndCapture(stream, &graph));
    if (error != "all-gather cannot start: the current stream is being captured into a graph") {
      return "error: " + error;
    }
    team->start(gather.exchange(slot, "all-gather"))->wait();  // the team is well
    good(cudaStreamSynchronize(stream));
    return {};
  });
  EXPECT_EQ(results, all_good(1));
}

// Ranks that give their slots back in different orders, keep some for ever and make new ones of
// their own: each lands where it likes.
TEST(Slots, EachRankChoosesItsOwn) {
  const int size = 4;
  const auto results = run_gpu_ranks(size, [&](int rank, Board& board) -> std::string {
    GpuStream stream;
    current_stream() = stream;
    GpuMemory wrong(16);
    fill(wrong, 0);
    auto team = join_gpu(rank, size, board);
    Random common(7), own(50 + rank);
    std::vector<Slot> kept;
    std::set<std::pair<uint32_t, uint64_t>> places;
    for (uint64_t round = 1; round <= 300; ++round) {
      const GpuGather gather({1 + common.below(3) * 700'000, 17}, rank, size);
      gather.fill(round, stream);
      kept.push_back(team->acquire(gather.bytes()));
      const Slot slot = kept.back();
      places.insert({slot.segment, slot.offset});
      team->start(gather.exchange(slot, "all-gather"))->wait();
      gather.check(slot, round, wrong.as<uint64_t>(), stream);
      good(cudaMemsetAsync(slot.data, 0xff, slot.bytes, stream));
      while (kept.size() > 6 || (!kept.empty() && own.below(2) == 0)) {
        const size_t which = own.below(kept.size());
        team->release(kept[which]);
        kept.erase(kept.begin() + static_cast<long>(which));
      }
    }
    if (auto text = bad("bytes", read_counter(wrong)); !text.empty()) return text;
    uint64_t sum = 0;  // of what this rank chose
    for (const auto& [segment, offset] : places) sum = sum * 31 + segment * 7 + offset;
    const auto all = board.exchange(rank, std::to_string(sum));
    return all[0] == all[1] && all[1] == all[2] ? "all ranks chose alike: nothing was tested" : "";
  });
  EXPECT_EQ(results, all_good(size));
}

// With every SM full of another kernel nothing but copy engines can move a byte.
TEST(Pushes, ToAnotherGpuNeedNoSm) {
  const int size = 2;
  const auto results = run_gpu_ranks(size, [&](int rank, Board& board) -> std::string {
    if (take_gpu(rank) < size) return "one GPU";
    GpuStream stream, busy;
    current_stream() = stream;
    auto team = join_gpu(rank, size, board);
    const GpuGather gather({30'000'000, 4097, 12}, rank, size);
    gather.fill(1, stream);
    const Slot slot = team->acquire(gather.bytes());
    team->start(gather.exchange(slot, "all-gather"))->wait();  // all is loaded
    good(cudaDeviceSynchronize());
    int* stop = nullptr;
    good(cudaMallocHost(reinterpret_cast<void**>(&stop), sizeof *stop));
    *stop = 0;
    int multiprocessors = 0;
    good(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, rank));
    occupy(multiprocessors, stop, busy);
    good(cudaGetLastError());
    board.barrier(rank);
    auto exchange = gather.exchange(slot, "all-gather");
    std::erase_if(exchange.pushes, [&](const device::Push& push) { return push.peer == rank; });
    const auto pending = team->start(std::move(exchange));
    std::string result;
    const auto begin = std::chrono::steady_clock::now();
    while (!pending->done() && result.empty()) {
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(5)) {
        result = "the pushes waited for an SM";
      }
    }
    if (cudaStreamQuery(busy) != cudaErrorNotReady) result += "the SMs were free";
    *stop = 1;
    good(cudaDeviceSynchronize());
    board.barrier(rank);
    return result;
  });
  if (results[0] == "one GPU") {
    GTEST_SKIP() << "the ranks share one GPU, inside which the driver copies with SMs";
  }
  EXPECT_EQ(results, all_good(size));
}

TEST(Fork, AChildLeavesTheTeamAlone) {
  const int size = 2;
  const auto results = run_gpu_ranks(size, [&](int rank, Board& board) -> std::string {
    GpuStream stream;
    current_stream() = stream;
    GpuMemory wrong(16);
    fill(wrong, 0);
    auto team = join_gpu(rank, size, board);
    const GpuGather gather({1000}, rank, size);
    gather.fill(1, stream);
    const Slot slot = team->acquire(gather.bytes());
    board.barrier(rank);
    auto pending = team->start(gather.exchange(slot, "all-gather"));
    const pid_t child = fork();
    if (child == 0) {
      std::string error;
      try {
        pending->wait();
      } catch (const Error& caught) {
        error = caught.what();
      }
      pending.reset();
      team->release(slot);
      team.reset();
      _exit(error.rfind("this process was forked", 0) == 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    if (status != 0) return "the child ended with " + std::to_string(status);
    pending->wait();
    gather.check(slot, 1, wrong.as<uint64_t>(), stream);
    team->release(slot);
    const std::string text = bad("bytes", read_counter(wrong));
    board.barrier(rank);
    return text;
  });
  EXPECT_EQ(results, all_good(size));
}

TEST(Pending, KeepsMemoryThatIsStillRead) {
  const int size = 2;
  const auto results = run_gpu_ranks(size, [&](int rank, Board& board) -> std::string {
    GpuStream stream;
    current_stream() = stream;
    auto team = join_gpu(rank, size, board);
    const GpuGather gather({1000}, rank, size);
    const Slot slot = team->acquire(gather.bytes());
    auto kept = std::make_shared<int>(1);
    auto exchange = gather.exchange(slot, "all-gather");
    exchange.keep = kept;
    Hold hold;
    if (rank == 1) hold.put_on(stream);
    team->start(std::move(exchange));  // and the Pending is dropped
    team->acquire(512);
    if (kept.use_count() != 2) return "dropped what is still read";
    board.barrier(rank);
    hold.end();
    good(cudaStreamSynchronize(stream));
    team->release(slot);
    const auto second = team->acquire(gather.bytes());
    auto pending = team->start(gather.exchange(second, "all-gather 2"));
    pending->wait();
    good(cudaStreamSynchronize(stream));
    team->acquire(512);
    if (kept.use_count() != 1) return "kept what is not read any more";
    board.barrier(rank);
    return {};
  });
  EXPECT_EQ(results, all_good(size));
}

}  // namespace
}  // namespace tide::test
