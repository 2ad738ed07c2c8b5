// The watchdog looks at words of host memory and at sockets only.
#include "shim/device/cuda/flight.h"

#include <algorithm>
#include <optional>
#include <system_error>

#include "include/tide/error.h"
#include "include/tide/patience.h"
#include "include/tide/thread.h"

namespace tide::device::cuda {
namespace {

constexpr std::chrono::milliseconds kLookEvery{20};
// After a failure: peers may overwrite what was released, and what was enqueued behind waits next.
constexpr std::chrono::milliseconds kReleaseEvery{1};
// Released streams have only finite work left.
constexpr std::chrono::seconds kDrain{10};

// For a peer: it is a few microseconds away as a rule.
Patience peer_patience() { return {2000, 200, std::chrono::microseconds(50)}; }

}  // namespace

Flight::Flight(const Lookout& lookout, std::vector<Board> boards)
    : lookout_(lookout), boards_(std::move(boards)) {
  try {
    watchdog_ = quiet_thread([this] { watch(); });
  } catch (const std::system_error& error) {
    throw Error(std::string("cannot start the watchdog of a CUDA team: ") + error.what());
  }
}

Flight::~Flight() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  watchdog_.join();
}

void Flight::begin(const std::shared_ptr<Job>& job) {
  {
    const std::lock_guard lock(mutex_);
    if (auto trouble = lookout_.reported()) fail_locked("an exchange of a peer", *trouble);
    if (!error_.empty()) throw Error(job->what + " cannot start: " + error_);
    jobs_.push_back(job);
  }
  boards_[lookout_.rank()].publish(job->sequence, job->landing);
}

void Flight::await_peers(Job& job) {
  std::vector<Place> places;
  std::vector<uint64_t> codes;
  for (int q = 0; q < lookout_.size(); ++q) {
    std::optional<Place> place;
    for (Patience patience = peer_patience(); !(place = boards_[q].published(job.sequence));
         patience.wait()) {
      if (failed_.load(std::memory_order_acquire)) throw Error(error_of(job));
    }
    if (place->bytes != job.landing.bytes) {
      throw Error("the ranks diverged: exchange " + std::to_string(job.sequence) + " has " +
                  std::to_string(job.landing.bytes) + " bytes to land on " +
                  lookout_.name(lookout_.rank()) + " and " + std::to_string(place->bytes) + " on " +
                  lookout_.name(q));
    }
    places.push_back(*place);
    codes.push_back(code_of(job.sequence, *place));
  }
  const std::lock_guard lock(mutex_);
  job.places = std::move(places);
  job.codes = std::move(codes);
}

void Flight::withdraw(const Job& job) {
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [&](const std::shared_ptr<Job>& other) { return other.get() == &job; });
}

bool Flight::settle(Job& job) {
  if (job.done || !job.error.empty()) return true;
  if (!ended(job)) return false;
  // A peer that fails says so before it releases its streams: what they pushed then, ready or not,
  // cannot pass for success here.
  if (auto trouble = lookout_.reported()) {
    fail_locked(job.what, *trouble);
    return true;
  }
  job.done = true;
  ++completed_;
  return true;
}

bool Flight::ended(const Job& job) const {
  return boards_[lookout_.rank()].done(job.sequence).load(std::memory_order_acquire) >=
         job.sequence;
}

bool Flight::settled(Job& job) {
  const std::lock_guard lock(mutex_);
  return settle(job);
}

std::string Flight::error_of(const Job& job) {
  const std::lock_guard lock(mutex_);
  return job.error;
}

void Flight::fail(const std::string& what, const Trouble& trouble) {
  const std::lock_guard lock(mutex_);
  fail_locked(what, trouble);
}

void Flight::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  stop(reason, lookout_.local(reason));
}

uint64_t Flight::completed() {
  const std::lock_guard lock(mutex_);
  retire();
  return completed_;
}

void Flight::on_failure(std::function<void(const std::string&)> callback) {
  const std::lock_guard lock(mutex_);
  on_failure_ = std::move(callback);
}

std::string Flight::error() {
  const std::lock_guard lock(mutex_);
  if (auto trouble = lookout_.reported()) fail_locked("an exchange of a peer", *trouble);
  return error_;
}

bool Flight::close() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::hours(24), [this] {
    retire();
    return jobs_.empty() || (!error_.empty() && Clock::now() > failed_at_ + kDrain);
  }) && jobs_.empty();
}

void Flight::watch() noexcept {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    retire();
    if (jobs_.empty()) {
      changed_.notify_all();
    } else if (error_.empty()) {
      if (const auto found = look()) fail_locked(found->first, found->second);
    }
    if (!error_.empty() && !told_) {
      told_ = true;
      if (const auto callback = on_failure_) {
        const std::string reason = reason_;
        lock.unlock();
        callback(reason);
        lock.lock();
      }
    }
    if (!error_.empty() && !jobs_.empty()) {
      release();
      changed_.notify_all();
    }
    // No call wakes this thread: that would cost the caller more than looking in vain costs here.
    changed_.wait_for(lock, error_.empty() || jobs_.empty() ? kLookEvery : kReleaseEvery,
                      [this] { return stopping_; });
  }
}

// The failed leave only when their streams have come to their end.
void Flight::retire() {
  for (const auto& job : jobs_) settle(*job);
  std::erase_if(jobs_, [this](const std::shared_ptr<Job>& job) { return ended(*job); });
}

void Flight::fail_locked(const std::string& what, const Trouble& trouble) {
  stop(what + " failed: " + trouble.reason, trouble);
}

void Flight::stop(std::string error, const Trouble& trouble) {
  if (!error_.empty()) return;
  reason_ = trouble.reason;
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  failed_at_ = Clock::now();
  for (const auto& job : jobs_) {
    if (!job->done) job->error = job->what + " failed: " + reason_;
  }
  lookout_.tell(trouble);
}

std::optional<std::pair<std::string, Trouble>> Flight::look() const {
  const Board& own = boards_[lookout_.rank()];
  const std::string& first = jobs_.front()->what;
  if (auto trouble = lookout_.reported()) return std::pair{first, *trouble};
  for (int q : lookout_.hung_up()) {
    // A report that it left goes first, and what it finished counts: a peer that did its part and
    // left is no error.
    if (auto trouble = lookout_.reported()) return std::pair{first, *trouble};
    for (const auto& job : jobs_) {
      if (own.arrived(q, job->sequence).load(std::memory_order_acquire) != job->code) {
        return std::pair{job->what, lookout_.gone(q)};
      }
    }
  }
  const auto now = Clock::now();
  for (const auto& job : jobs_) {
    if (now >= job->deadline) return std::pair{job->what, lateness(*job)};
  }
  return std::nullopt;
}

Trouble Flight::lateness(const Job& job) const {
  const int rank = lookout_.rank();
  const std::string limit = " within " + seconds(job.timeout);
  if (job.codes.empty()) {
    for (int q = 0; q < lookout_.size(); ++q) {
      if (!boards_[q].published(job.sequence)) return lookout_.absent(q, job.timeout);
    }
    return lookout_.local(lookout_.name(rank) + " did not enqueue it" + limit);
  }
  for (int q = 0; q < lookout_.size(); ++q) {
    if (q != rank && boards_[q].ready(rank, job.sequence).load() != job.code) {
      return lookout_.local("the streams of " + lookout_.name(rank) + " did not come to it" +
                            limit);
    }
  }
  for (int q = 0; q < lookout_.size(); ++q) {
    if (q != rank && boards_[rank].ready(q, job.sequence).load() != job.codes[q]) {
      return lookout_.absent(q, job.timeout);
    }
  }
  for (int q = 0; q < lookout_.size(); ++q) {
    if (q != rank && boards_[rank].arrived(q, job.sequence).load() != job.code) {
      return lookout_.absent(q, job.timeout);
    }
  }
  return lookout_.local("the streams of " + lookout_.name(rank) + " did not end it" + limit);
}

// Gives every stream the value it waits for. Of two exchanges that use the same words the later one
// waits for the end of the earlier one, which is released first.
void Flight::release() const {
  const Board& own = boards_[lookout_.rank()];
  std::vector<bool> taken(kRing, false);
  for (const auto& job : jobs_) {
    if (job->codes.empty() || taken[job->sequence % kRing]) continue;
    taken[job->sequence % kRing] = true;
    for (int q = 0; q < lookout_.size(); ++q) {
      own.ready(q, job->sequence).store(job->codes[q], std::memory_order_release);
      for (int part = 0; part < kMostParts; ++part) {
        own.arrived(q, job->sequence, part).store(job->code, std::memory_order_release);
      }
    }
  }
}

}  // namespace tide::device::cuda
