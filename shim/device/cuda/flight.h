// The exchanges that are started and not complete, and the thread that watches over them: a peer
// that dies, reports a failure or is late fails the team, and then the threads and the streams that
// wait for peers are released, so that nothing waits for ever.
//
// What streams compute from a released exchange is undefined, as are the contents of all landing
// slots: pushes that waited for a peer's readiness are made on release too. Who catches the error
// must go back to a state saved before.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shim/device/cuda/board.h"
#include "shim/device/cuda/lookout.h"

namespace tide::device::cuda {

struct Job {
  std::string what;
  uint64_t sequence = 0;  // from 1 on
  Place landing;
  uint64_t code = 0;  // code_of(sequence, landing)
  // Of all ranks; filled by Flight::await_peers(), then left as they are.
  std::vector<Place> places;
  std::vector<uint64_t> codes;
  std::vector<CUdeviceptr> landings;  // the places, as this rank's GPU reaches them
  std::chrono::milliseconds timeout{0};
  Clock::time_point deadline;
  Event end;                        // recorded when all of it is enqueued
  std::shared_ptr<void> keep;       // what the exchange reads
  std::atomic<bool> waited{false};  // some stream of the caller waits for `end`
  // Guarded by the flight.
  bool done = false;
  std::string error;
};

class Flight {
 public:
  // boards: of all ranks. `lookout` outlives this. Throws tide::Error when no thread can start.
  Flight(const Lookout& lookout, std::vector<Board> boards);
  // After close().
  ~Flight();

  const Board& board(int rank) const { return boards_[rank]; }

  // Takes `job` in and tells the peers where it lands, in order of sequence. Throws tide::Error
  // "<what> cannot start: ..." when the team has failed.
  void begin(const std::shared_ptr<Job>& job);
  // After begin(), before the first operation of `job` is enqueued: waits until the host threads of
  // all peers have begun the same exchange, and fills job.places and job.codes. No rank waits for a
  // GPU here. Throws tide::Error when the team fails meanwhile or the ranks diverged.
  void await_peers(Job& job);
  // A job of which nothing was enqueued, after fail().
  void withdraw(const Job& job);
  // Has it ended or failed? Looks at the board.
  bool settled(Job& job);
  // Have its streams come to its end? Those of one that failed do so later, or never.
  bool ended(const Job& job) const;
  // Its error, empty while it runs and when it is well.
  std::string error_of(const Job& job);
  // Fails the team: "<what> failed: <reason>". Only the first failure counts.
  void fail(const std::string& what, const Trouble& trouble);
  // The same with `reason` alone as the team's error: this rank gives up.
  void abort(const std::string& reason);
  // The team's error, else empty. Looks at what peers report: what streams came to before this call
  // is right when it returns nothing.
  std::string error();
  // Exchanges that ended well.
  uint64_t completed();
  // Called once, by the watchdog, with the reason of the failure, before anything is released. Must
  // not end the flight. Replaces the one before.
  void on_failure(std::function<void(const std::string&)> callback);

  // Waits for the exchanges in flight; a peer's death, a deadline or a failure end the wait. False
  // when something still hangs on the GPU, whose memory must then be left alone.
  bool close();

 private:
  void watch() noexcept;
  // These hold the mutex.
  bool settle(Job& job);
  void retire();
  void fail_locked(const std::string& what, const Trouble& trouble);
  void stop(std::string error, const Trouble& trouble);
  std::optional<std::pair<std::string, Trouble>> look() const;
  Trouble lateness(const Job& job) const;
  void release() const;

  const Lookout& lookout_;
  const std::vector<Board> boards_;

  mutable std::mutex mutex_;  // never held while the driver is called: it may block
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  std::atomic<bool> failed_{false};  // error_ is not empty
  uint64_t completed_ = 0;
  std::string error_;   // "all-gather of layers.3 failed: " + reason_
  std::string reason_;  // "rank 2 (pid 1234) is gone"
  Clock::time_point failed_at_;
  std::function<void(const std::string&)> on_failure_;
  bool told_ = false;  // on_failure_
  bool stopping_ = false;
  std::thread watchdog_;
};

}  // namespace tide::device::cuda
