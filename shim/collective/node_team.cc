#include "shim/collective/node_team.h"

#include <cfenv>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "include/tide/error.h"
#include "include/tide/patience.h"
#include "include/tide/thread.h"
#include "shim/device/completion.h"
#include "shim/device/host/fork.h"

namespace tide::collective {
namespace {

constexpr const char* kOwner = "the rails between nodes";

// How long a stream may take to its end once all that it waits for is released.
constexpr std::chrono::seconds kDrain{10};

struct Task : device::Completion {
  Call call;  // what it keeps is in `keep`
  std::shared_ptr<NodeCollective> collective;
  std::shared_ptr<device::Gates> gates;  // with a stage
};

// For a word of a stream: often at first, without taking the core from the job.
Patience stream_patience() { return {0, 200, std::chrono::microseconds(20)}; }

// "all-gather of layers.3 failed: rank 2 is gone" without the words that the caller adds.
std::string bare(std::string failure, const std::string& what) {
  for (const char* verb : {" failed: ", " cannot start: ", " failed: "}) {
    const std::string prefix = what + verb;
    if (failure.starts_with(prefix)) failure.erase(0, prefix.size());
  }
  return failure;
}

}  // namespace

void Fate::join(const Member& member) {
  const std::lock_guard lock(mutex_);
  members_.push_back(member);
  if (!failed()) return;
  member.rail->abort(reason_);
  give_up(member);
}

void Fate::leave(const Rail& rail) {
  const std::lock_guard lock(mutex_);
  std::erase_if(members_, [&](const Member& member) { return member.rail == &rail; });
}

std::string Fate::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failed()) return reason_;
  reason_ = reason;
  failed_.store(true, std::memory_order_release);
  for (const Member& member : members_) member.rail->abort(reason);
  for (const Member& member : members_) give_up(member);
  return reason;
}

std::string Fate::reason() {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void Fate::give_up(const Member& member) const {
  member.team->abort(reason_);
  if (member.stage != nullptr) member.stage->give_up();
}

struct NodeTeam::State {
  State(const device::Team& team, bool staged, Fate& fate)
      : team(team), staged(staged), fate(fate) {
    try {
      worker = quiet_thread([this] { work(); });
    } catch (const std::system_error& trouble) {
      throw Error(std::string("cannot start the thread of ") + kOwner + ": " + trouble.what());
    }
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
      lock.unlock();
      std::string failure = outcome(*task);
      lock.lock();
      if (!failure.empty()) {
        failure = task->call.what + " failed: " + failure;
        if (error.empty()) error = failure;
      }
      queue.pop_front();
      completions->finish(*task, std::move(failure));
    }
  }

  // Why the task failed, or nothing. Everything is given up then.
  std::string outcome(const Task& task) {
    std::string failure;
    try {
      if (fate.failed()) throw Error(fate.reason());
      if (staged) {
        task.collective->carry(task.call, *task.gates);
        task.gates->carried();
        for (Patience patience = stream_patience(); !task.gates->over() && !fate.failed();
             patience.wait()) {
        }
        // A stream that was released comes to its end too; then one of these knows.
        if (fate.failed()) throw Error(fate.reason());
        if (const std::string wrong = team.error(); !wrong.empty()) throw Error(wrong);
      } else {
        Call call = task.call;
        // It is let go with the task, by a caller: this is not the last reference.
        call.keep = task.keep;
        task.collective->move(call);
      }
      return {};
    } catch (const std::exception& trouble) {
      failure = fate.fail(bare(trouble.what(), task.call.what));
    }
    if (staged) drain(task);
    return failure;
  }

  // What was enqueued may still write what the task keeps.
  void drain(const Task& task) {
    const auto deadline = std::chrono::steady_clock::now() + kDrain;
    for (Patience patience = stream_patience(); !task.gates->over(); patience.wait()) {
      if (std::chrono::steady_clock::now() < deadline) continue;
      new std::shared_ptr<void>(task.keep);  // it hangs
      return;
    }
  }

  const device::Team& team;
  const bool staged;
  Fate& fate;
  const std::shared_ptr<device::Completions> completions = std::make_shared<device::Completions>();
  std::condition_variable queued;
  std::mutex order;  // turns are enqueued in the order of the queue
  // Guarded by completions->mutex.
  std::deque<std::shared_ptr<Task>> queue;
  bool closing = false;
  std::string error;  // "all-gather of layers.3 failed: rank 2 is gone"
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
  fate_->join({.team = team_.get(), .rail = rail_.get(), .stage = stage_.get()});
  try {
    state_ = std::make_unique<State>(*team_, stage_ != nullptr, *fate_);
    team_->on_failure([fate = fate_](const std::string& reason) { fate->fail(reason); });
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
  // The team may have failed without a task that said so (in acquire()): other nodes hear why this
  // rail ends.
  if (const std::string why = team().error(); !why.empty()) fate_->fail(why);
  fate_->leave(*rail_);
  rail_.reset();
}

std::shared_ptr<device::Pending> NodeTeam::run(Call call,
                                               std::shared_ptr<NodeCollective> collective) {
  if (device::host::fork_generation() != state_->generation) device::throw_forked(kOwner);
  state_->completions->drop_kept();
  if (call.timeout.count() <= 0) call.timeout = timeout_;
  auto task = std::make_shared<Task>();
  task->keep = std::move(call.keep);
  task->call = std::move(call);
  task->collective = std::move(collective);
  const std::lock_guard order(state_->order);
  {
    const std::lock_guard lock(state_->completions->mutex);
    const std::string& what = task->call.what;
    if (state_->closing)
      throw Error(what + " cannot start: " + kOwner + " were closed: the process is ending");
    if (!state_->error.empty()) throw Error(what + " cannot start: " + state_->error);
  }
  std::function<void()> follow;
  if (stage_) follow = enqueue(task->call, task->keep, *task->collective, task->gates);
  auto pending = device::pending_of(state_->completions, task, kOwner, std::move(follow));
  {
    const std::lock_guard lock(state_->completions->mutex);
    state_->queue.push_back(std::move(task));
  }
  state_->queued.notify_all();
  return pending;
}

std::function<void()> NodeTeam::enqueue(Call call, const std::shared_ptr<void>& keep,
                                        NodeCollective& collective,
                                        std::shared_ptr<device::Gates>& gates) {
  call.keep = keep;
  try {
    gates = stage_->gates(collective.gates());
    stage_->begin(gates);
    collective.move(call);
    return stage_->end();
  } catch (const std::exception& trouble) {
    stage_->leave();
    const std::string reason = fate_->fail(bare(trouble.what(), call.what));
    // Part of it may be enqueued, and nobody looks for its end.
    new std::shared_ptr<void>(keep);
    const std::lock_guard lock(state_->completions->mutex);
    if (state_->error.empty()) state_->error = call.what + " failed: " + reason;
    throw Error(call.what + " failed: " + reason);
  }
}

void NodeTeam::await(device::Gates& gates, int gate) const {
  for (Patience patience = stream_patience(); !gates.open(gate); patience.wait()) {
  }
  if (fate_->failed()) throw Error(fate_->reason());
}

std::string NodeTeam::error() const {
  const std::lock_guard lock(state_->completions->mutex);
  return state_->error;
}

}  // namespace tide::collective
