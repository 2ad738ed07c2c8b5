#include "shim/collective/node_team.h"

#include <cfenv>
#include <csignal>
#include <deque>
#include <thread>
#include <utility>

#include "include/tide/error.h"
#include "shim/device/completion.h"
#include "shim/device/host/fork.h"

namespace tide::collective {
namespace {

constexpr const char* kOwner = "the rails between nodes";

// How long a rank whose node-mates gave up waits for its own rail to say why: the other nodes tell
// it by then, and their word names node and round.
constexpr std::chrono::milliseconds kHearRail{1000};

struct Task : device::Completion {
  std::string what;
  std::chrono::milliseconds timeout{0};
  std::function<void(const Call&)> body;
};

}  // namespace

struct NodeTeam::State {
  State(device::Team& team, Rail& rail) : team(team), rail(rail) {
    // Signals are the job's: its handlers must not run on this thread.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      worker = std::thread([this] { work(); });
    } catch (const std::system_error& trouble) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw Error(std::string("cannot start the thread of ") + kOwner + ": " + trouble.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void close() {
    bool busy = false;
    {
      const std::lock_guard lock(completions->mutex);
      closing = true;
      busy = !queue.empty();
    }
    queued.notify_all();
    if (busy) give_up("the process group was closed before it was complete");
    worker.join();
    completions->drop_kept();
  }

  void give_up(const std::string& reason) {
    rail.abort(reason);
    team.abort(reason);
  }

  void work() noexcept {
    // The thread that made this one may flush denormals; sums do not depend on it.
    std::fesetenv(FE_DFL_ENV);
    std::unique_lock lock(completions->mutex);
    for (;;) {
      queued.wait(lock, [this] { return closing || !queue.empty(); });
      if (queue.empty()) return;
      const std::shared_ptr<Task> task = queue.front();
      std::string failure = reason;
      if (failure.empty()) {
        lock.unlock();
        failure = outcome(*task);
        lock.lock();
        if (!failure.empty()) {
          reason = failure;
          error = task->what + " failed: " + reason;
        }
      }
      queue.pop_front();
      completions->finish(*task, failure.empty() ? "" : task->what + " failed: " + failure);
    }
  }

  // Why the task failed, or nothing. Everything is given up then.
  std::string outcome(const Task& task) {
    std::string failure;
    try {
      // What is kept is let go with the task, by a caller: this is not the last reference.
      task.body({.what = task.what, .timeout = task.timeout, .keep = task.keep});
      return {};
    } catch (const std::exception& trouble) {
      failure = trouble.what();
    }
    const auto until = std::chrono::steady_clock::now() + kHearRail;
    while (rail.error().empty() && !team.error().empty() &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (const std::string told = rail.error(); !told.empty() && told != failure) {
      failure = told;
    }
    give_up(failure);
    return failure;
  }

  device::Team& team;
  Rail& rail;
  const std::shared_ptr<device::Completions> completions = std::make_shared<device::Completions>();
  std::condition_variable queued;
  // Guarded by completions->mutex.
  std::deque<std::shared_ptr<Task>> queue;
  bool closing = false;
  std::string reason;
  std::string error;  // "all-gather of layers.3 failed: " + reason
  const uint64_t generation = device::host::fork_generation();
  std::thread worker;
};

NodeTeam::NodeTeam(std::shared_ptr<device::Team> team, std::unique_ptr<Rail> rail, int node,
                   int nodes, std::chrono::milliseconds timeout)
    : team_(std::move(team)),
      rail_(std::move(rail)),
      node_(node),
      nodes_(nodes),
      timeout_(timeout),
      state_(std::make_unique<State>(*team_, *rail_)) {}

NodeTeam::~NodeTeam() {
  if (device::host::fork_generation() == state_->generation) {
    state_->close();
  } else {
    static_cast<void>(state_.release());  // its thread is not in this process
  }
}

std::shared_ptr<device::Pending> NodeTeam::run(Call call, std::function<void(const Call&)> body) {
  if (device::host::fork_generation() != state_->generation) device::throw_forked(kOwner);
  state_->completions->drop_kept();
  auto task = std::make_shared<Task>();
  task->what = std::move(call.what);
  task->timeout = call.timeout.count() > 0 ? call.timeout : timeout_;
  task->body = std::move(body);
  task->keep = std::move(call.keep);
  auto pending = device::pending_of(state_->completions, task, kOwner);
  {
    const std::lock_guard lock(state_->completions->mutex);
    if (!state_->error.empty()) throw Error(task->what + " cannot start: " + state_->error);
    state_->queue.push_back(std::move(task));
  }
  state_->queued.notify_all();
  return pending;
}

std::string NodeTeam::error() const {
  const std::lock_guard lock(state_->completions->mutex);
  return state_->error;
}

}  // namespace tide::collective
