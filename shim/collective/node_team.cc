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

struct Task : device::Completion {
  std::string what;
  std::chrono::milliseconds timeout{0};
  std::function<void(const Call&)> body;
  std::shared_ptr<void> mark;  // of the stage, if there is one
};

}  // namespace

void Fate::join(const Member& member) {
  const std::lock_guard lock(mutex_);
  members_.push_back(member);
}

void Fate::leave(const Rail& rail) {
  const std::lock_guard lock(mutex_);
  std::erase_if(members_, [&](const Member& member) { return member.rail == &rail; });
}

void Fate::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (const Member& member : members_) {
    member.rail->abort(reason);
    member.team->abort(reason);
  }
}

struct NodeTeam::State {
  State(device::Team& team, device::Stage* stage, Rail& rail, Fate& fate)
      : team(team), stage(stage), rail(rail), fate(fate) {
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
    if (busy) fate.fail("the process group was closed before it was complete");
    worker.join();
    completions->drop_kept();
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
      if (stage != nullptr) stage->enter(task.mark);
      // What is kept is let go with the task, by a caller: this is not the last reference.
      task.body({.what = task.what, .timeout = task.timeout, .keep = task.keep});
      return {};
    } catch (const std::exception& trouble) {
      failure = trouble.what();
    }
    // The team's words begin with the same "all-gather of layers.3 failed: ".
    for (const char* verb : {" failed: ", " cannot start: ", " failed: "}) {
      const std::string prefix = task.what + verb;
      if (failure.starts_with(prefix)) failure.erase(0, prefix.size());
    }
    fate.fail(failure);
    // What was enqueued may still write what the task keeps.
    try {
      if (stage != nullptr) stage->finish();
    } catch (const std::exception&) {
      // It hangs; the team has been given up.
    }
    return failure;
  }

  device::Team& team;
  device::Stage* const stage;
  Rail& rail;
  Fate& fate;
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
                   int nodes, std::chrono::milliseconds timeout, std::shared_ptr<Fate> fate)
    : team_(std::move(team)),
      stage_(team_->stage()),
      rail_(std::move(rail)),
      node_(node),
      nodes_(nodes),
      timeout_(timeout),
      fate_(std::move(fate)) {
  fate_->join({.team = team_.get(), .rail = rail_.get()});
  try {
    state_ = std::make_unique<State>(*team_, stage_.get(), *rail_, *fate_);
  } catch (const std::exception&) {
    fate_->leave(*rail_);
    throw;
  }
}

NodeTeam::~NodeTeam() {
  if (device::host::fork_generation() == state_->generation) {
    close();
  } else {
    static_cast<void>(state_.release());  // its thread is not in this process
    static_cast<void>(stage_.release());  // and its device does not work here
  }
}

void NodeTeam::close() {
  if (!rail_) return;
  state_->close();
  fate_->leave(*rail_);
  rail_.reset();
}

std::shared_ptr<device::Pending> NodeTeam::run(Call call, std::function<void(const Call&)> body) {
  if (device::host::fork_generation() != state_->generation) device::throw_forked(kOwner);
  state_->completions->drop_kept();
  auto task = std::make_shared<Task>();
  task->what = std::move(call.what);
  task->timeout = call.timeout.count() > 0 ? call.timeout : timeout_;
  task->body = std::move(body);
  task->keep = std::move(call.keep);
  if (stage_) task->mark = stage_->mark();
  auto pending = device::pending_of(state_->completions, task, kOwner);
  {
    const std::lock_guard lock(state_->completions->mutex);
    if (state_->closing)
      throw Error(task->what + " cannot start: " + kOwner + " were closed: the process is ending");
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
