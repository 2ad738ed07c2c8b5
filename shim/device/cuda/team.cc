// The CUDA team: set-up together, slots, starting and waiting.
#include "shim/device/cuda/team.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "include/tide/error.h"
#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/engine.h"
#include "shim/device/cuda/flight.h"
#include "shim/device/cuda/multicast.h"
#include "shim/device/cuda/segments.h"
#include "shim/device/cuda/slot_heap.h"
#include "shim/device/cuda/stage.h"
#include "shim/device/cuda/validate.h"
#include "shim/device/host/bootstrap.h"
#include "shim/device/host/fork.h"

namespace tide::device {
namespace cuda {
namespace {

// Of the first segment, which is made with the team to try that the peers can reach it.
constexpr uint64_t kFirstSegment = 1 << 20;
constexpr int kEveryRank = -1;

[[noreturn]] void throw_forked() {
  throw Error("this process was forked from the one that made the CUDA team",
              "use the process group only in the process that created it");
}

// Everything of a team. Pendings hold it too.
class Core : public std::enable_shared_from_this<Core> {
 public:
  // Collective; the context is current. Throws tide::Error.
  Core(std::shared_ptr<Context> context, int rank, std::vector<host::Peer> peers,
       CudaTeamOptions options)
      : context_(context),
        options_(std::move(options)),
        lookout_(rank, std::move(peers)),
        flight_(lookout_, trade_boards()),
        segments_(context, lookout_, options_.make_room),
        engine_(context, lookout_, flight_,
                {.blocks = options_.sum_blocks, .longest = options_.max_launch},
                options_.part_bytes),
        ring_(kRing) {
    grow(kFirstSegment);
  }

  // The trial of the ways to the peers, in two steps that all ranks take together: each leaves a
  // mark in the first segment of every rank, by a copy as pushes are, then finds all in its own.
  // The context is current. Throw tide::Error.
  void mark_peers() {
    for (int q = 0; q < size(); ++q) {
      const uint64_t mark = mark_of(rank(), q);
      const CUdeviceptr place = segments_.reach(q, {1, rank() * sizeof mark, sizeof mark});
      copy_now(place, reinterpret_cast<CUdeviceptr>(&mark), sizeof mark,
               "write to the memory of " + lookout_.name(q));
    }
  }
  void find_marks() {
    find_marks(1, rank(), "peer access between the GPUs does not work here (IOMMU or ACS?)");
  }
  // Those that each rank left for `to` in this segment.
  void find_marks(uint32_t segment, int to, const char* remedy) {
    std::vector<uint64_t> marks(size());
    copy_now(reinterpret_cast<CUdeviceptr>(marks.data()), segments_.address(segment),
             marks.size() * sizeof(uint64_t), "read landing memory");
    for (int q = 0; q < size(); ++q) {
      if (marks[q] == mark_of(q, to)) continue;
      throw Error("what " + lookout_.name(q) + " wrote to this GPU did not arrive", remedy);
    }
  }

  // Landing memory behind multicast, where all ranks can have it; then the same trial of it as of
  // the first segment. All ranks together, when the descriptors of the first segment have been
  // read. The context is current. Throw tide::Error.
  bool make_common(Rendezvous& rendezvous) {
    MulticastResult made =
        make_multicast(driver(), {context_->handle(), context_->device()}, lookout_, rendezvous,
                       {.bytes = options_.multicast_bytes, .sums = options_.multicast_sums});
    if (!made.multicast && options_.without_multicast) options_.without_multicast(made.reason);
    multicast_ = std::move(made.multicast);
    return multicast_ != nullptr;
  }
  void mark_common() {
    const host::Descriptor own = multicast_->share();
    common_segment_ =
        segments_.add(DeviceMapping::import(context_, own.get(), multicast_->bytes()));
    // One mark for all, at this rank's place.
    const uint64_t mark = mark_of(rank(), kEveryRank);
    copy_now(multicast_->address() + rank() * sizeof mark, reinterpret_cast<CUdeviceptr>(&mark),
             sizeof mark, "write to a multicast object");
  }
  void use_common() {
    find_marks(common_segment_, kEveryRank, "multicast does not work here: TIDE_MULTICAST=off");
    engine_.use_multicast(common_segment_, multicast_->address(), options_.multicast_sums);
    const std::lock_guard lock(heap_mutex_);
    common_heap_.add(common_segment_, multicast_->bytes());
  }

  int rank() const { return lookout_.rank(); }
  int size() const { return lookout_.size(); }
  const Context& context() const { return *context_; }
  Flight& flight() { return flight_; }
  CUstream current_stream() const {
    if (entered_stream() != nullptr) return entered_stream();
    return options_.current_stream ? options_.current_stream() : nullptr;
  }

  Slot acquire(uint64_t bytes) {
    if (const std::string error = flight_.error(); !error.empty()) {
      throw Error("no landing slot: " + error);
    }
    if (auto slot = take(bytes)) return *slot;
    const Current current(*context_);
    for (;;) {  // another thread may take what this one makes
      try {
        grow(bytes);
      } catch (const Error& error) {
        // The peers will wait for an exchange that this rank cannot take part in.
        flight_.fail("growth of the landing memory", lookout_.local(error.what()));
        throw Error("no landing slot: " + flight_.error());
      }
      if (auto slot = take(bytes)) return *slot;
    }
  }

  std::optional<Slot> acquire_free(uint64_t bytes) {
    if (!flight_.error().empty()) return std::nullopt;
    const std::optional<Slot> slot = take(bytes);
    if (!slot) return std::nullopt;
    const Current current(*context_);
    std::vector<Fence> fences;
    {
      const std::lock_guard lock(heap_mutex_);
      fences = used_[{slot->segment, slot->offset}].fences;
    }
    try {
      const CUstream stream = current_stream();
      for (const Fence& fence : fences) {
        check(driver().cuStreamWaitEvent(stream, static_cast<CUevent>(fence.get()), /*flags=*/0),
              "wait for the last use of a landing slot");
      }
      // What comes behind this stream comes behind them all. Kept one by one they would pile up in
      // a slot that no exchange lands in.
      if (fences.size() > 1) {
        Fence passed = engine_.record(stream);
        const std::lock_guard lock(heap_mutex_);
        used_[{slot->segment, slot->offset}].fences = {std::move(passed)};
      }
    } catch (const Error&) {
      release(*slot);
      return std::nullopt;
    }
    return slot;
  }

  void release(const Slot& slot) {
    const Current current(*context_);
    std::vector<Fence> fences;
    try {
      const CUstream stream = current_stream();
      // A graph reads the slot whenever it is replayed, and no exchange may wait for an event that
      // was recorded into it.
      if (capturing(stream)) return;
      fences.push_back(engine_.record(stream));
    } catch (const Error&) {
      // A slot whose last use cannot be known is not used again. That is so when the process ends
      // and has shut the driver down: no reason to fail the peers.
      return;
    }
    const std::lock_guard lock(heap_mutex_);
    const auto found = used_.find({slot.segment, slot.offset});
    if (found == used_.end()) return;
    for (Fence& fence : found->second.fences) fences.push_back(std::move(fence));
    const Place place = found->second.place;
    (place.segment == common_segment_ ? common_heap_ : heap_).give(place, std::move(fences));
    used_.erase(found);
  }

  void abort(const std::string& reason) noexcept { flight_.abort(reason); }

  std::shared_ptr<Job> start(Exchange exchange) {
    const Current current(*context_);
    const CUstream stream = current_stream();
    validate(exchange, rank(), size());
    if (capturing(stream)) {
      throw Error(exchange.what +
                  " cannot start: the current stream is being captured into a graph");
    }
    auto job = std::make_shared<Job>();
    job->what = exchange.what;
    job->timeout = exchange.timeout.count() > 0 ? exchange.timeout : options_.timeout;
    job->deadline = Clock::now() + job->timeout;
    job->keep = std::move(exchange.keep);

    const std::lock_guard order(order_);
    std::vector<Fence> fences;
    if (exchange.landing.bytes > 0) {
      const Slot& slot = exchange.landing;
      const std::lock_guard lock(heap_mutex_);
      const auto found = used_.find({slot.segment, slot.offset});
      if (found == used_.end() || found->second.place.bytes != slot.bytes ||
          reinterpret_cast<uint64_t>(slot.data) != segments_.address(slot.segment) + slot.offset) {
        throw Error(exchange.what +
                    " cannot start: its landing slot is not one that this team gave out");
      }
      job->landing = found->second.place;
      fences = std::move(found->second.fences);
      found->second.fences.clear();
    }
    job->sequence = started_ + 1;
    job->code = code_of(job->sequence, job->landing);
    flight_.begin(job);  // throws before anything is enqueued
    ++started_;
    std::shared_ptr<Job>& former = ring_[job->sequence % kRing];
    bool enqueued = false;  // some of it
    try {
      flight_.await_peers(*job);
      for (int q = 0; q < size() && job->landing.bytes > 0; ++q) {
        job->landings.push_back(segments_.reach(q, job->places[q]));
      }
      enqueued = true;
      engine_.enqueue(*job, exchange, stream, fences, former ? former->end : nullptr);
    } catch (const std::exception& error) {
      flight_.fail(job->what, lookout_.local(error.what()));
      if (!enqueued) flight_.withdraw(*job);
      throw Error(flight_.error_of(*job));
    }
    former = job;
    if (job->landing.bytes > 0) {
      const std::lock_guard lock(heap_mutex_);
      const auto found = used_.find({job->landing.segment, job->landing.offset});
      // Who releases the slot need not have waited for the exchange.
      if (found != used_.end()) found->second.fences = {job->end};
    }
    return job;
  }

  // Makes the current stream wait. Throws the exchange's error.
  void wait(Job& job) {
    if (!flight_.settled(job)) {
      const Current current(*context_);
      check(driver().cuStreamWaitEvent(current_stream(), job.end.get(), /*flags=*/0),
            "wait for " + job.what);
      job.waited = true;
      return;
    }
    if (const std::string error = flight_.error_of(job); !error.empty()) throw Error(error);
  }

  // The Pending of `job` is gone. Streams may still read for an exchange that failed.
  void drop(const std::shared_ptr<Job>& job) {
    std::shared_ptr<void> keep = std::move(job->keep);
    if (job->waited || flight_.ended(*job)) return;
    job->keep = std::move(keep);
    const std::lock_guard lock(dropped_mutex_);
    dropped_.push_back(job);
  }

  // Lets go of what exchanges read that have ended and that nobody waited for.
  void sweep() {
    std::vector<std::shared_ptr<void>> kept;
    const std::lock_guard lock(dropped_mutex_);
    std::erase_if(dropped_, [&](const std::shared_ptr<Job>& job) {
      if (!flight_.ended(*job)) return false;
      kept.push_back(std::move(job->keep));
      return true;
    });
  }

  TeamStats stats() {
    TeamStats stats;
    const std::lock_guard lock(heap_mutex_);
    stats.slot_bytes = heap_.bytes() + common_heap_.bytes();
    stats.slots = heap_.segments() + common_heap_.segments();
    stats.slots_in_use = used_.size();
    stats.bytes_pushed = engine_.bytes_pushed();
    stats.exchanges = flight_.completed();
    return stats;
  }

  std::unique_ptr<Stage> stage() {
    return make_stage(context_, [core = shared_from_this()] { return core->current_stream(); });
  }

  // Waits for what is in flight and for the last readers of the slots. When something hangs on the
  // GPU, all of this is left as it is until the process ends.
  void close() {
    const Current current(*context_);
    // Peers whose streams were released may still push through it.
    if (!flight_.error().empty()) multicast_.release();
    if (flight_.close() && driver().cuCtxSynchronize() == CUDA_SUCCESS) {
      const std::lock_guard lock(dropped_mutex_);
      dropped_.clear();
      return;
    }
    leak();
  }

  void leak() { new std::shared_ptr<Core>(shared_from_this()); }

 private:
  struct Used {
    Place place;
    std::vector<Fence> fences;  // of former uses, then the end of its last exchange
  };

  std::vector<Board> trade_boards() {
    const host::SharedMemory own = Board::create(size());
    uint64_t bytes = own.mapping->bytes();
    const std::span message(&bytes, 1);
    for (int q = 0; q < size(); ++q) {
      if (q == rank() || lookout_.peer(q).socket.send(std::as_bytes(message), own.fd.get()))
        continue;
      throw Error("cannot hand memory to " + lookout_.name(q) + ": " + std::strerror(errno));
    }
    std::vector<Board> boards;
    for (int q = 0; q < size(); ++q) {
      if (q == rank()) {
        boards.emplace_back(context_, own.mapping, size());
        continue;
      }
      const auto fd = lookout_.peer(q).socket.receive(std::as_writable_bytes(message),
                                                      Clock::now() + options_.timeout);
      if (!fd) throw Error("no memory came from " + lookout_.name(q));
      boards.emplace_back(context_, host::map_memory(fd->get(), own.mapping->bytes()), size());
    }
    return boards;
  }

  // What rank `from` leaves at rank `to`: not what memory happens to hold.
  static uint64_t mark_of(int from, int to) {
    return code_of(1, {static_cast<uint32_t>(from), static_cast<uint64_t>(to), 0});
  }

  void copy_now(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, const std::string& what) {
    const Stream stream(context_);
    check(driver().cuMemcpyAsync(to, from, bytes, stream.get()), what);
    check(driver().cuStreamSynchronize(stream.get()), what);
  }

  std::optional<Slot> take(uint64_t bytes) {
    const std::lock_guard lock(heap_mutex_);
    auto grant = common_heap_.take(bytes);
    if (!grant) grant = heap_.take(bytes);
    if (!grant) return std::nullopt;
    const Place& place = grant->place;
    used_[{place.segment, place.offset}] = {place, std::move(grant->fences)};
    return Slot{reinterpret_cast<std::byte*>(segments_.address(place.segment) + place.offset),
                place.bytes, place.segment, place.offset};
  }

  void grow(uint64_t bytes) {
    const uint32_t segment = segments_.add(bytes);
    const std::lock_guard lock(heap_mutex_);
    heap_.add(segment, segments_.bytes(segment));
  }

  // Into a graph. Throws tide::Error.
  static bool capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    check(driver().cuStreamIsCapturing(stream, &status), "look at the current stream");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }

  const std::shared_ptr<Context> context_;
  const CudaTeamOptions options_;
  const Lookout lookout_;
  std::unique_ptr<Multicast> multicast_;
  uint32_t common_segment_ = 0;  // the memory behind multicast_; 0: none
  Flight flight_;
  std::mutex order_;  // exchanges are enqueued in the order in which they are published
  Segments segments_;
  Engine engine_;
  uint64_t started_ = 0;
  std::vector<std::shared_ptr<Job>> ring_;  // the last kRing exchanges

  mutable std::mutex heap_mutex_;
  SlotHeap heap_;
  SlotHeap common_heap_;                                // of common_segment_
  std::map<std::pair<uint32_t, uint64_t>, Used> used_;  // by segment and offset

  std::mutex dropped_mutex_;
  std::vector<std::shared_ptr<Job>> dropped_;
};

class CudaPending : public Pending {
 public:
  CudaPending(std::shared_ptr<Core> core, std::shared_ptr<Job> job)
      : core_(std::move(core)), job_(std::move(job)) {}
  ~CudaPending() override {
    if (!forked()) core_->drop(job_);
  }

  void wait() override {
    if (forked()) throw_forked();
    core_->sweep();
    core_->wait(*job_);
  }
  bool done() const override { return forked() || core_->flight().settled(*job_); }
  std::string error() const override {
    return forked() ? std::string() : core_->flight().error_of(*job_);
  }

 private:
  bool forked() const { return host::fork_generation() != generation_; }

  const uint64_t generation_ = host::fork_generation();
  const std::shared_ptr<Core> core_;
  const std::shared_ptr<Job> job_;
};

// What the caller holds. In a forked child nothing of the team may be touched: CUDA does not work
// there, and the watchdog is missing. There it is left as it is.
class CudaTeam : public Team {
 public:
  explicit CudaTeam(std::shared_ptr<Core> core)
      : rank_(core->rank()), size_(core->size()), core_(std::move(core)) {}
  ~CudaTeam() override {
    if (forked()) {
      core_->leak();
    } else {
      core_->close();
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Slot acquire(uint64_t bytes) override {
    if (forked()) throw_forked();
    core_->sweep();
    return core_->acquire(bytes);
  }
  std::optional<Slot> acquire_free(uint64_t bytes) override {
    return forked() ? std::nullopt : core_->acquire_free(bytes);
  }
  void release(const Slot& slot) noexcept override {
    if (!forked()) core_->release(slot);
  }
  std::shared_ptr<Pending> start(Exchange exchange) override {
    if (forked()) throw_forked();
    core_->sweep();
    return std::make_shared<CudaPending>(core_, core_->start(std::move(exchange)));
  }
  std::unique_ptr<Stage> stage() override {
    if (forked()) throw_forked();
    return core_->stage();
  }
  void on_failure(std::function<void(const std::string&)> callback) override {
    if (!forked()) core_->flight().on_failure(std::move(callback));
  }
  TeamStats stats() const override { return forked() ? TeamStats{} : core_->stats(); }
  std::string error() const override {
    return forked() ? "the process was forked" : core_->flight().error();
  }
  void abort(const std::string& reason) noexcept override {
    if (!forked()) core_->abort(reason);
  }

 private:
  bool forked() const { return host::fork_generation() != generation_; }

  const uint64_t generation_ = host::fork_generation();
  const int rank_;
  const int size_;
  const std::shared_ptr<Core> core_;
};

// Runs a step and tells all ranks how it went: all go on or all throw the first rank's error.
template <class Step>
auto together(Rendezvous& rendezvous, const std::vector<std::string>& names, Step step) {
  decltype(step()) result;
  std::string mine = "+";
  try {
    result = step();
  } catch (const std::exception& error) {
    mine = std::string("-") + error.what();
  }
  const std::vector<std::string> all = rendezvous.exchange(mine);
  for (size_t q = 0; q < names.size(); ++q) {
    if (q < all.size() && all[q] == "+") continue;
    throw Error("no CUDA team: " + names[q] + ": " +
                (q < all.size() && !all[q].empty() ? all[q].substr(1) : "said nothing"));
  }
  return result;
}

}  // namespace
}  // namespace cuda

std::unique_ptr<Team> make_cuda_team(int rank, int size, Rendezvous& rendezvous,
                                     CudaTeamOptions options) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error("a CUDA team has no rank " + std::to_string(rank) + " of " + std::to_string(size));
  }
  if (options.timeout.count() <= 0) throw Error("the timeout of a CUDA team must be positive");
  if (options.sum_blocks < 1) throw Error("the sums of a CUDA team need a thread block");
  if (options.part_bytes < 1) throw Error("the parts of a CUDA team's exchanges need a byte");
  if (options.names.empty()) {
    for (int q = 0; q < size; ++q) options.names.push_back("rank " + std::to_string(q));
  }
  if (options.names.size() != static_cast<size_t>(size)) {
    throw Error("a CUDA team of " + std::to_string(size) + " got " +
                std::to_string(options.names.size()) + " names");
  }
  const std::vector<std::string> names = options.names;
  const bool multicast = options.multicast_bytes > 0;
  const auto context = cuda::together(
      rendezvous, names, [&] { return std::make_shared<cuda::Context>(options.ordinal); });
  auto peers = host::connect_peers(rank, names, rendezvous, options.timeout);
  const auto core = cuda::together(rendezvous, names, [&] {
    const cuda::Current current(*context);
    return std::make_shared<cuda::Core>(context, rank, std::move(peers), std::move(options));
  });
  cuda::together(rendezvous, names, [&] {
    const cuda::Current current(*context);
    core->mark_peers();
    return true;
  });
  cuda::together(rendezvous, names, [&] {
    const cuda::Current current(*context);
    core->find_marks();
    return true;
  });
  if (multicast) {
    const cuda::Current current(*context);
    if (core->make_common(rendezvous)) {
      cuda::together(rendezvous, names, [&] { return core->mark_common(), true; });
      cuda::together(rendezvous, names, [&] { return core->use_common(), true; });
    }
  }
  return std::make_unique<cuda::CudaTeam>(core);
}

}  // namespace tide::device
