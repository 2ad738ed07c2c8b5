#include "shim/device/completion.h"

#include <utility>

#include "include/tide/error.h"
#include "shim/device/host/fork.h"

namespace tide::device {
namespace {

class QueuedPending : public Pending {
 public:
  QueuedPending(std::shared_ptr<Completions> completions, std::shared_ptr<Completion> work,
                const char* owner, std::function<void()> follow)
      : completions_(std::move(completions)),
        work_(std::move(work)),
        owner_(owner),
        follow_(std::move(follow)) {}

  ~QueuedPending() override {
    if (forked()) return;
    std::shared_ptr<void> kept;
    const std::lock_guard lock(completions_->mutex);
    if (work_->done || followed_) {
      kept = std::move(work_->keep);
    } else {
      work_->abandoned = true;
    }
  }

  void wait() override {
    if (forked()) throw_forked(owner_);
    completions_->drop_kept();
    std::shared_ptr<void> kept;
    std::unique_lock lock(completions_->mutex);
    if (follow_ && !work_->done) {
      lock.unlock();
      follow_();
      lock.lock();
      followed_ = true;
      return;
    }
    completions_->changed.wait(lock, [this] { return work_->done; });
    kept = std::move(work_->keep);
    lock.unlock();
    if (!work_->error.empty()) throw Error(work_->error);
  }

  bool done() const override {
    if (forked()) return true;
    const std::lock_guard lock(completions_->mutex);
    return work_->done;
  }

  std::string error() const override {
    if (forked()) return {};
    const std::lock_guard lock(completions_->mutex);
    return work_->error;
  }

  std::chrono::steady_clock::time_point finished() const override {
    if (forked()) return {};
    const std::lock_guard lock(completions_->mutex);
    return work_->finished;
  }

 private:
  bool forked() const { return host::fork_generation() != generation_; }

  const uint64_t generation_ = host::fork_generation();
  const std::shared_ptr<Completions> completions_;
  const std::shared_ptr<Completion> work_;
  const char* const owner_;
  const std::function<void()> follow_;
  bool followed_ = false;  // guarded by the completions' mutex
};

}  // namespace

void Completions::finish(Completion& work, std::string error) {
  work.done = true;
  work.finished = std::chrono::steady_clock::now();
  work.error = std::move(error);
  if (work.abandoned) dropped_.push_back(std::move(work.keep));
  changed.notify_all();
}

void Completions::drop_kept() {
  std::vector<std::shared_ptr<void>> taken;
  const std::lock_guard lock(mutex);
  taken.swap(dropped_);
}

std::shared_ptr<Pending> pending_of(std::shared_ptr<Completions> completions,
                                    std::shared_ptr<Completion> work, const char* owner,
                                    std::function<void()> follow) {
  return std::make_shared<QueuedPending>(std::move(completions), std::move(work), owner,
                                         std::move(follow));
}

void throw_forked(const char* owner) {
  throw Error(std::string("this process was forked from the one that made ") + owner,
              "use the process group only in the process that created it");
}

}  // namespace tide::device
