// The order of an exchange on the team's stream: the caller's work so far and the last uses of the
// landing slot; "ready" to all peers; for each peer, from rank + 1 on, its "ready", the pushes to
// it, "arrived"; the peers' "arrived"; the sum; "done". What a rank pushes into its own slot goes
// on a second stream meanwhile. A large reduce-scatter goes in parts, each of which is pushed,
// arrives and is summed like that, the sums on the second stream: push_and_sum(). Where the switch
// adds, the middle is another: multicast_reduce.h. The team has streams of its own, for each stream
// of the caller, so that an asynchronous call does not hold the caller's stream up; whoever needs
// the result waits for the event at the end.
#include "shim/device/cuda/engine.h"

#include <algorithm>

#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/multicast_push.h"
#include "shim/device/cuda/multicast_reduce.h"

namespace tide::device::cuda {
namespace {

constexpr size_t kStreams = 4;
constexpr size_t kMostCallers = 64;      // streams of callers that are remembered
constexpr size_t kMostOperations = 256;  // of one cuStreamBatchMemOp

bool continues(const Push& before, const Push& push) {
  return push.peer == before.peer && push.to == before.to + before.bytes &&
         push.from == static_cast<const std::byte*>(before.from) + before.bytes;
}

// Sorted by peer, without empty ones, and those that adjoin on both sides as one.
std::vector<Push> merged(std::vector<Push> pushes) {
  std::ranges::stable_sort(pushes, {}, &Push::peer);
  std::vector<Push> result;
  result.reserve(pushes.size());
  for (const Push& push : pushes) {
    if (push.bytes == 0) continue;
    if (!result.empty() && continues(result.back(), push)) {
      result.back().bytes += push.bytes;
    } else {
      result.push_back(push);
    }
  }
  return result;
}

}  // namespace

// Collects waits and writes of words and enqueues them in few calls.
class Engine::MemoryOperations {
 public:
  explicit MemoryOperations(CUstream stream) : stream_(stream) {}

  void write(CUdeviceptr word, uint64_t value) {
    CUstreamBatchMemOpParams& operation = next();
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operation.writeValue.address = word;
    operation.writeValue.value64 = value;
    // With a memory barrier: what was pushed is visible where the word is.
    operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  }

  void wait(CUdeviceptr word, uint64_t value) {
    CUstreamBatchMemOpParams& operation = next();
    operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    operation.waitValue.address = word;
    operation.waitValue.value64 = value;
    operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  }

  void flush() {
    if (operations_.empty()) return;
    check(driver().cuStreamBatchMemOp(stream_, static_cast<unsigned>(operations_.size()),
                                      operations_.data(), /*flags=*/0),
          "enqueue waits and writes");
    operations_.clear();
  }

 private:
  CUstreamBatchMemOpParams& next() {
    if (operations_.size() == kMostOperations) flush();
    return operations_.emplace_back();
  }

  const CUstream stream_;
  std::vector<CUstreamBatchMemOpParams> operations_;
};

// Collects copies and enqueues them in one call, asking for copy engines instead of SMs; one by one
// where the driver has no such call. Between GPUs the request is heard; inside one GPU the driver
// (580.159 on an H200) uses SMs whatever it is asked.
class Engine::Copies {
 public:
  // Adds what reaches ranks to `pushed`.
  Copies(CUstream stream, std::atomic<uint64_t>& pushed) : stream_(stream), pushed_(pushed) {}

  // Into `slot`, which is that of `ranks` ranks.
  void add(CUdeviceptr slot, const Push& push, int ranks = 1) {
    to_.push_back(slot + push.to);
    from_.push_back(reinterpret_cast<CUdeviceptr>(push.from));
    bytes_.push_back(push.bytes);
    pushed_.fetch_add(push.bytes * static_cast<uint64_t>(ranks), std::memory_order_relaxed);
  }

  void flush() {
    if (to_.empty()) return;
    if (driver().copy_batch != nullptr) {
      CUmemcpyAttributes attributes{};
      attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
      attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
      size_t first = 0;
      check(driver().copy_batch(to_.data(), from_.data(), bytes_.data(), to_.size(), &attributes,
                                &first, 1, stream_),
            "enqueue pushes");
    } else {
      for (size_t i = 0; i < to_.size(); ++i) {
        check(driver().cuMemcpyAsync(to_[i], from_[i], bytes_[i], stream_), "enqueue a push");
      }
    }
    to_.clear();
    from_.clear();
    bytes_.clear();
  }

 private:
  const CUstream stream_;
  std::atomic<uint64_t>& pushed_;
  std::vector<CUdeviceptr> to_;
  std::vector<CUdeviceptr> from_;
  std::vector<size_t> bytes_;
};

Engine::Engine(std::shared_ptr<Context> context, const Lookout& lookout, const Flight& flight,
               SumSettings settings, uint64_t part_bytes)
    : context_(context),
      lookout_(lookout),
      flight_(flight),
      settings_(settings),
      part_bytes_(part_bytes),
      events_(std::make_shared<EventPool>(context)),
      kernels_(context) {
  for (size_t i = 0; i < kStreams; ++i) streams_.push_back(std::make_unique<Streams>(context));
}

const Engine::Streams& Engine::streams_for(CUstream caller) {
  for (const auto& [of, streams] : streams_of_callers_) {
    if (of == caller) return *streams;
  }
  // Callers beyond the number of streams share; a job that makes streams without end starts anew.
  if (streams_of_callers_.size() == kMostCallers) streams_of_callers_.clear();
  const Streams& streams = *streams_[streams_of_callers_.size() % kStreams];
  streams_of_callers_.emplace_back(caller, &streams);
  return streams;
}

template <class Act>
void Engine::for_each_peer(Act act) const {
  for (int k = 1; k < lookout_.size(); ++k) {
    const int q = (lookout_.rank() + k) % lookout_.size();
    act(q, flight_.board(q));
  }
}

void Engine::say_ready(const Job& job, MemoryOperations& words) const {
  for_each_peer([&](int, const Board& peer) {
    words.write(peer.address_of(peer.ready(lookout_.rank(), job.sequence)), job.code);
  });
}

void Engine::await_ready(const Job& job, MemoryOperations& words) const {
  const Board& own = flight_.board(lookout_.rank());
  for_each_peer([&](int q, const Board&) {
    words.wait(own.address_of(own.ready(q, job.sequence)), job.codes[q]);
  });
}

void Engine::say_arrived(const Job& job, MemoryOperations& words, int following) const {
  for_each_peer([&](int q, const Board& peer) {
    words.write(peer.address_of(peer.arrived(lookout_.rank(), job.sequence, following)),
                job.codes[q]);
  });
}

void Engine::await_arrived(const Job& job, MemoryOperations& words, int following) const {
  const Board& own = flight_.board(lookout_.rank());
  for_each_peer([&](int q, const Board&) {
    words.wait(own.address_of(own.arrived(q, job.sequence, following)), job.code);
  });
}

void Engine::enqueue(Job& job, Exchange& exchange, CUstream caller,
                     const std::vector<Fence>& fences, const Event& before) {
  const Streams& streams = streams_for(caller);
  const CUstream stream = streams.pushes.get();
  const Event entry = record(caller);
  check(driver().cuStreamWaitEvent(stream, entry.get(), /*flags=*/0), "wait for the caller");
  if (before != nullptr) {
    check(driver().cuStreamWaitEvent(stream, before.get(), 0), "wait for an earlier exchange");
  }
  for (const Fence& fence : fences) {
    check(driver().cuStreamWaitEvent(stream, static_cast<CUevent>(fence.get()), 0),
          "wait for the last use of a landing slot");
  }
  MemoryOperations words(stream);
  const auto slots = common_slots(job);
  if (slots && switch_kernels_ && switch_can_add(exchange.sum)) {
    add_in_switch(job, exchange, *slots, words, stream);
  } else {
    say_ready(job, words);
    if (slots) push_to_all(job, *slots, exchange.pushes, words, stream);
    const int parts = count_parts(exchange.sum, lookout_.size(), part_bytes_);
    if (parts > 1) {
      push_and_sum(job, exchange, parts, words, streams);
    } else {
      push(job, merged(std::move(exchange.pushes)), words, streams);
    }
  }
  const Board& own = flight_.board(lookout_.rank());
  if (!exchange.sum.runs.empty() || !exchange.sum.zeros.empty()) {
    kernels_.enqueue(exchange.sum, lookout_.rank(), lookout_.size(),
                     reinterpret_cast<uint64_t>(exchange.landing.data), settings_, stream);
  }
  words.write(own.address_of(own.done(job.sequence)), job.sequence);
  words.flush();
  job.end = record(stream);
}

void Engine::use_multicast(uint32_t segment, CUdeviceptr address, bool sums) {
  if (sums) switch_kernels_.emplace(context_);
  multicast_segment_ = segment;
  multicast_address_ = address;
}

std::optional<CUdeviceptr> Engine::common_slots(const Job& job) const {
  if (multicast_segment_ == 0) return std::nullopt;
  const auto offset = common_offset(job.places, multicast_segment_);
  return offset ? std::optional(multicast_address_ + *offset) : std::nullopt;
}

void Engine::push_to_all(const Job& job, CUdeviceptr slots, std::vector<Push>& pushes,
                         MemoryOperations& words, CUstream stream) {
  SplitPushes split = split_pushes(pushes, lookout_.size());
  pushes = std::move(split.to_each);
  if (split.to_all.empty()) return;
  await_ready(job, words);
  words.flush();
  Copies copies(stream, bytes_pushed_);
  for (const Push& push : merged(std::move(split.to_all))) {
    copies.add(slots, push, lookout_.size());
  }
  copies.flush();
}

void Engine::push_and_sum(const Job& job, Exchange& exchange, int parts, MemoryOperations& words,
                          const Streams& streams) {
  const int rank = lookout_.rank();
  std::vector<Part> cut = cut_into_parts(exchange, rank, parts);

  // All pushes are enqueued before a sum: where both streams share a hardware channel, a sum that
  // waits for a peer must not stand before what that peer waits for.
  const Event begin = record(streams.pushes.get());
  Copies copies(streams.pushes.get(), bytes_pushed_);
  await_ready(job, words);
  for (int p = 0; p < parts; ++p) {
    words.flush();
    const std::vector<Push> pushes = merged(std::move(cut[p].pushes));
    for_each_peer([&](int q, const Board&) {
      for (const Push& push : std::ranges::equal_range(pushes, q, {}, &Push::peer)) {
        copies.add(job.landings[q], push);
      }
    });
    copies.flush();
    say_arrived(job, words, parts - 1 - p);
  }
  words.flush();

  const CUstream sums = streams.own.get();
  check(driver().cuStreamWaitEvent(sums, begin.get(), /*flags=*/0), "wait for the caller");
  MemoryOperations arrivals(sums);
  Sum sum = exchange.sum;
  sum.zeros.clear();
  for (int p = 0; p < parts; ++p) {
    await_arrived(job, arrivals, parts - 1 - p);
    arrivals.flush();
    sum.runs = std::move(cut[p].runs);
    kernels_.enqueue(sum, rank, lookout_.size(), reinterpret_cast<uint64_t>(exchange.landing.data),
                     settings_, sums);
  }
  const Event end = record(sums);
  check(driver().cuStreamWaitEvent(streams.pushes.get(), end.get(), 0), "wait for the sums");
}

void Engine::add_in_switch(const Job& job, Exchange& exchange, CUdeviceptr slots,
                           MemoryOperations& words, CUstream stream) {
  const int rank = lookout_.rank();
  SwitchSum plan = switch_sum(exchange, rank, slots);
  exchange.sum.runs.clear();
  Copies copies(stream, bytes_pushed_);
  for (const Push& copy : merged(std::move(plan.copies))) copies.add(job.landings[rank], copy);
  copies.flush();
  say_ready(job, words);
  await_ready(job, words);
  words.flush();
  switch_kernels_->enqueue(plan.sum, {.longest = settings_.longest}, stream);
  say_arrived(job, words);
  await_arrived(job, words);
  words.flush();
}

void Engine::push(const Job& job, const std::vector<Push>& pushes, MemoryOperations& words,
                  const Streams& streams) {
  const int rank = lookout_.rank();
  const Board& own = flight_.board(rank);
  auto copy_to = [&](int peer, CUstream stream) {
    Copies copies(stream, bytes_pushed_);
    for (const Push& push : std::ranges::equal_range(pushes, peer, {}, &Push::peer)) {
      copies.add(job.landings[peer], push);
    }
    copies.flush();
  };

  // Without them nothing waits for the second stream, whose channel another stream may hold up.
  const bool own_copies = std::ranges::binary_search(pushes, rank, {}, &Push::peer);
  const Event begin = own_copies ? record(streams.pushes.get()) : nullptr;
  for_each_peer([&](int q, const Board& peer) {
    // Also when there is nothing to push: "arrived" must not overwrite the word of an exchange that
    // the peer has not read yet, and its "ready" says that it has.
    words.wait(own.address_of(own.ready(q, job.sequence)), job.codes[q]);
    words.flush();
    copy_to(q, streams.pushes.get());
    words.write(peer.address_of(peer.arrived(rank, job.sequence)), job.codes[q]);
  });
  words.flush();

  // Beside the pushes, and enqueued behind them: the driver copies inside a GPU with SMs, for which
  // it may have to wait, and peers should not where both streams share a hardware channel.
  if (own_copies) {
    check(driver().cuStreamWaitEvent(streams.own.get(), begin.get(), /*flags=*/0),
          "wait for the caller");
    copy_to(rank, streams.own.get());
    const Event copied = record(streams.own.get());
    check(driver().cuStreamWaitEvent(streams.pushes.get(), copied.get(), 0), "wait for own copies");
  }
  await_arrived(job, words);
  words.flush();
}

}  // namespace tide::device::cuda
