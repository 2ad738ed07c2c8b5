// The host team: slots, the queue of exchanges, and the one thread that runs them in order.
#include "shim/device/host/team.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "include/tide/error.h"
#include "include/tide/thread.h"
#include "shim/device/completion.h"
#include "shim/device/host/bootstrap.h"
#include "shim/device/host/engine.h"
#include "shim/device/host/fork.h"
#include "shim/device/host/slots.h"

namespace tide::device {
namespace host {
namespace {

constexpr const char* kOwner = "the host team";

void check(bool good, const Exchange& exchange, const std::string& what) {
  if (!good) throw Error(exchange.what + " cannot start: " + what);
}

bool fits(uint64_t begin, uint64_t bytes, uint64_t limit) {
  return begin <= limit && bytes <= limit - begin;
}

// Throws tide::Error unless all of the exchange lies inside its own memory.
void validate(const Exchange& exchange, int rank, int size) {
  const uint64_t landing = exchange.landing.bytes;
  for (const Push& push : exchange.pushes) {
    check(push.peer >= 0 && push.peer < size, exchange,
          "a push to rank " + std::to_string(push.peer) + " of " + std::to_string(size));
    check(push.from != nullptr || push.bytes == 0, exchange, "a push from no memory");
    check(push.peer != rank || fits(push.to, push.bytes, landing), exchange,
          "a push past the end of the rank's own landing slot");
  }
  const Sum& sum = exchange.sum;
  check(sum.out != DType::kFloat16, exchange, "a sum gives fp32 or bf16, not fp16");
  bool writes = false;  // an empty tensor has no memory
  for (const SumRun& run : sum.runs) writes |= run.count > 0;
  for (const auto& zeros : sum.zeros) writes |= zeros.second > 0;
  check(sum.output != nullptr || !writes, exchange, "a sum without an output");
  // Place after place is read, this rank's own excepted where the sources are ranks.
  const bool ranks = sum.sources < 0;
  const int last = ranks ? (rank == size - 1 ? size - 2 : size - 1) : sum.sources - 1;
  for (const SumRun& run : sum.runs) {
    check(run.own != nullptr || run.count == 0 || (!ranks && last >= 0), exchange,
          "a sum without this rank's own source");
    if (last < 0 || run.count == 0) continue;
    const auto places = static_cast<uint64_t>(last);
    check(run.count <= landing / size_of(sum.in) && sum.place_bytes <= landing &&
              (places == 0 || sum.place_bytes <= landing / places) &&
              fits(places * sum.place_bytes, run.landing, landing) &&
              fits(places * sum.place_bytes + run.landing, run.count * size_of(sum.in), landing),
          exchange, "a sum reads past the end of the landing slot");
  }
}

class HostTeam {
 public:
  HostTeam(int rank, std::vector<Peer> peers, std::chrono::milliseconds timeout)
      : engine_(rank, std::move(peers)), timeout_(timeout) {
    try {
      worker_ = quiet_thread([this] { work(); });
    } catch (const std::system_error& error) {
      throw Error(std::string("cannot start the thread of a host team: ") + error.what());
    }
  }

  ~HostTeam() {
    {
      std::lock_guard<std::mutex> lock(completions_->mutex);
      closing_ = true;
      halted_.store(true, std::memory_order_relaxed);
    }
    queued_.notify_all();
    engine_.interrupt();
    worker_.join();
    completions_->drop_kept();
  }

  int rank() const { return engine_.rank(); }
  int size() const { return engine_.size(); }

  Slot acquire(uint64_t bytes) {
    completions_->drop_kept();
    {
      std::lock_guard<std::mutex> lock(completions_->mutex);
      if (!error_.empty()) throw Error("no landing slot: " + error_);
      if (auto slot = pool_.reuse(bytes)) return *slot;
    }
    SharedMemory memory = create_memory(bytes);  // takes long; others go on
    std::lock_guard<std::mutex> lock(completions_->mutex);
    return pool_.add(std::move(memory));
  }

  std::optional<Slot> acquire_free(uint64_t bytes) {
    completions_->drop_kept();
    std::lock_guard<std::mutex> lock(completions_->mutex);
    return error_.empty() ? pool_.reuse(bytes) : std::nullopt;
  }

  void release(const Slot& slot) {
    std::lock_guard<std::mutex> lock(completions_->mutex);
    pool_.release(slot.segment);
  }

  std::shared_ptr<Pending> start(Exchange exchange) {
    completions_->drop_kept();
    auto job = std::make_shared<Job>();
    job->exchange = std::move(exchange);
    validate(job->exchange, rank(), size());
    std::ranges::stable_sort(job->exchange.pushes, {}, &Push::peer);
    job->timeout = job->exchange.timeout.count() > 0 ? job->exchange.timeout : timeout_;
    job->deadline = Clock::now() + job->timeout;
    job->keep = std::move(job->exchange.keep);
    auto pending = pending_of(completions_, job, kOwner);
    {
      std::lock_guard<std::mutex> lock(completions_->mutex);
      if (!error_.empty()) throw Error(job->exchange.what + " cannot start: " + error_);
      if (job->exchange.landing.bytes > 0) {
        const Slot& landing = job->exchange.landing;
        SlotPool::Entry* entry = pool_.find(landing.segment);
        check(entry != nullptr && entry->acquired &&
                  fits(landing.offset, landing.bytes, entry->memory.mapping->bytes()) &&
                  landing.data == entry->memory.mapping->data() + landing.offset,
              job->exchange, "its landing slot is not one that this team gave out");
        ++entry->exchanges;
      }
      job->sequence = ++started_;
      queue_.push_back(job);
      grant_ahead();
    }
    queued_.notify_all();
    return pending;
  }

  TeamStats stats() const {
    TeamStats stats;
    std::lock_guard<std::mutex> lock(completions_->mutex);
    pool_.fill(stats);
    stats.bytes_pushed = engine_.bytes_pushed();
    stats.exchanges = completed_;
    return stats;
  }

  std::string error() const {
    std::lock_guard<std::mutex> lock(completions_->mutex);
    return error_;
  }

  void abort(const std::string& reason) {
    {
      std::lock_guard<std::mutex> lock(completions_->mutex);
      if (!error_.empty()) return;
      reason_ = error_ = reason;
      halted_.store(true, std::memory_order_relaxed);
    }
    engine_.tell({FailureKind::kLocal, rank(), {}}, reason);
    engine_.interrupt();
  }

 private:
  // Publishes the grants of the exchange at the head of the queue and of the next one, so that
  // peers can push while this rank is still adding. Not of one whose slot an earlier exchange still
  // uses. The mutex is held.
  std::optional<Trouble> grant_ahead() {
    for (size_t i = 0; i < queue_.size() && i < kGrants; ++i) {
      Job& job = *queue_[i];
      if (job.granted) continue;
      const Slot& landing = job.exchange.landing;
      if (landing.bytes == 0) {
        job.granted = true;
        continue;
      }
      const bool busy = i > 0 && queue_[0]->exchange.landing.bytes > 0 &&
                        queue_[0]->exchange.landing.segment == landing.segment;
      if (busy) break;
      if (auto trouble = engine_.grant(job, *pool_.find(landing.segment))) return trouble;
    }
    return std::nullopt;
  }

  void work() noexcept {
    // The thread that made this one may flush denormals; sums do not depend on it.
    std::fesetenv(FE_DFL_ENV);
    std::unique_lock<std::mutex> lock(completions_->mutex);
    for (;;) {
      queued_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::shared_ptr<Job> job = queue_.front();
      std::optional<Trouble> trouble;
      if (error_.empty()) {
        trouble = grant_ahead();
        // Only this job's own grant stops it.
        if (job->granted) trouble.reset();
      }
      if (error_.empty() && !trouble) {
        lock.unlock();
        trouble = run(*job);
        lock.lock();
      }
      if (trouble && error_.empty()) fail(*job, *trouble);
      complete(*job);
      queue_.pop_front();
      if (error_.empty()) grant_ahead();
    }
  }

  // The mutex is not held. Memory may run out where a peer's segments are noted.
  std::optional<Trouble> run(const Job& job) {
    try {
      return engine_.run(job, halted_);
    } catch (const std::exception& error) {
      return Trouble{{FailureKind::kLocal, rank(), {}}, error.what()};
    }
  }

  // The mutex is held.
  void fail(const Job& job, const Trouble& trouble) {
    reason_ = trouble.reason;
    error_ = job.exchange.what + " failed: " + reason_;
    if (trouble.failure.kind == FailureKind::kNone) return;  // nobody else's business
    const bool own =
        trouble.failure.kind == FailureKind::kLocal && trouble.failure.culprit == rank();
    engine_.tell(trouble.failure, own ? trouble.reason : trouble.relayed);
  }

  // The mutex is held.
  void complete(Job& job) {
    if (error_.empty()) ++completed_;
    if (job.exchange.landing.bytes > 0) --pool_.find(job.exchange.landing.segment)->exchanges;
    completions_->finish(job, error_.empty() ? "" : job.exchange.what + " failed: " + reason_);
  }

  const std::shared_ptr<Completions> completions_ = std::make_shared<Completions>();
  Engine engine_;
  const std::chrono::milliseconds timeout_;
  std::atomic<bool> halted_{false};  // the worker gives up the exchange it is at
  std::condition_variable queued_;
  // Guarded by completions_->mutex.
  bool closing_ = false;
  SlotPool pool_;
  std::deque<std::shared_ptr<Job>> queue_;
  uint64_t started_ = 0;
  uint64_t completed_ = 0;
  std::string error_;   // of the team: "all-gather of layers.3 failed: " + reason_
  std::string reason_;  // "rank 2 (pid 1234) is gone"
  std::thread worker_;
};

// What the caller holds. In a forked child nothing of the team may be touched: its thread is not
// there, its locks may be held for ever, its sockets are closed. There it is left as it is.
class ForkAwareTeam : public Team {
 public:
  ForkAwareTeam(int rank, std::vector<Peer> peers, std::chrono::milliseconds timeout)
      : rank_(rank),
        size_(static_cast<int>(peers.size())),
        team_(std::make_unique<HostTeam>(rank, std::move(peers), timeout)) {}

  ~ForkAwareTeam() override {
    if (forked()) static_cast<void>(team_.release());
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Slot acquire(uint64_t bytes) override {
    if (forked()) throw_forked(kOwner);
    return team_->acquire(bytes);
  }

  std::optional<Slot> acquire_free(uint64_t bytes) override {
    return forked() ? std::nullopt : team_->acquire_free(bytes);
  }

  void release(const Slot& slot) noexcept override {
    if (!forked()) team_->release(slot);
  }

  std::shared_ptr<Pending> start(Exchange exchange) override {
    if (forked()) throw_forked(kOwner);
    return team_->start(std::move(exchange));
  }

  TeamStats stats() const override { return forked() ? TeamStats{} : team_->stats(); }

  std::string error() const override {
    return forked() ? "the process was forked" : team_->error();
  }

  void abort(const std::string& reason) noexcept override {
    if (!forked()) team_->abort(reason);
  }

 private:
  bool forked() const { return fork_generation() != generation_; }

  const uint64_t generation_ = fork_generation();
  const int rank_;
  const int size_;
  std::unique_ptr<HostTeam> team_;
};

}  // namespace
}  // namespace host

std::unique_ptr<Team> make_host_team(int rank, int size, Rendezvous& rendezvous,
                                     HostTeamOptions options) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error("a host team has no rank " + std::to_string(rank) + " of " + std::to_string(size));
  }
  if (options.timeout.count() <= 0) throw Error("the timeout of a host team must be positive");
  if (options.names.empty()) {
    for (int q = 0; q < size; ++q) options.names.push_back("rank " + std::to_string(q));
  }
  if (options.names.size() != static_cast<size_t>(size)) {
    throw Error("a host team of " + std::to_string(size) + " got " +
                std::to_string(options.names.size()) + " names");
  }
  auto peers = host::connect_peers(rank, options.names, rendezvous, options.timeout);
  return std::make_unique<host::ForkAwareTeam>(rank, std::move(peers), options.timeout);
}

}  // namespace tide::device
