#include "tests/nodes/played_device.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "include/tide/error.h"
#include "shim/device/host/memory.h"

namespace tide::test {
namespace {

using device::Exchange;
using device::Pending;
using device::Slot;

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

class PlayedGates : public device::Gates {
 public:
  explicit PlayedGates(int count) : words_(count) {}
  volatile uint32_t* word(int gate) override { return &words_.at(gate); }
  void carried() override { carried_ = true; }
  bool over() override { return over_; }

  void open_all() {
    for (uint32_t& word : words_) __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
    carried_ = true;
  }
  std::atomic<bool> carried_{false};
  std::atomic<bool> over_{false};

 private:
  std::vector<uint32_t> words_;
};

// A failed stream runs to its end without waiting, as one does whose words are released.
class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    enqueue(nullptr);
    thread_.join();
  }
  using Work = std::function<void()>;
  void enqueue(Work work) {
    {
      const std::lock_guard lock(mutex_);
      works_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  std::function<void(const std::string&)> on_failure;  // before the first work

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !works_.empty(); });
      const Work work = std::move(works_.front());
      works_.pop_front();
      lock.unlock();
      if (!work) return;
      try {
        work();
      } catch (const std::exception& error) {
        if (std::exchange(failed_, true)) continue;
        if (on_failure) on_failure(error.what());
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> works_;
  bool failed_ = false;
  std::thread thread_;
};

class PlayedStage : public device::Stage {
 public:
  explicit PlayedStage(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}

  std::span<std::byte> host(uint64_t bytes) override {
    if (mirrors_.empty() || mirrors_.back()->bytes() < bytes)
      mirrors_.push_back(device::host::create_memory(bytes).mapping);
    return {mirrors_.back()->data(), mirrors_.back()->bytes()};
  }
  std::shared_ptr<device::Gates> gates(int count) override {
    auto gates = std::make_shared<PlayedGates>(count);
    const std::lock_guard lock(mutex_);
    if (given_up_) gates->open_all();
    all_.push_back(gates);
    return gates;
  }
  void begin(const std::shared_ptr<device::Gates>& gates) override {
    turn_ = std::static_pointer_cast<PlayedGates>(gates);
    if (last_) {
      stream_->enqueue([last = last_] {
        while (!last->carried_) pause();
      });
    }
    entered = this;
  }
  void copy(void* to, const void* from, uint64_t bytes) override {
    stream_->enqueue([=] { std::memcpy(to, from, bytes); });
  }
  void open(int gate) override {
    stream_->enqueue(
        [turn = turn_, gate] { __atomic_store_n(turn->word(gate), 1, __ATOMIC_RELEASE); });
  }
  void await(int gate) override {
    stream_->enqueue([turn = turn_, gate] {
      while (!turn->device::Gates::open(gate)) pause();
    });
  }
  std::function<void()> end() override {
    stream_->enqueue([turn = turn_] { turn->over_ = true; });
    last_ = turn_;
    leave();
    return [turn = last_] {
      while (!turn->over_) pause();
    };
  }
  void leave() noexcept override {
    entered = nullptr;
    turn_.reset();
  }
  void give_up() noexcept override {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    for (const auto& gates : all_) gates->open_all();
  }

  static thread_local PlayedStage* entered;
  Stream& stream() { return *stream_; }

 private:
  const std::shared_ptr<Stream> stream_;
  std::vector<std::shared_ptr<device::host::Mapping>> mirrors_;
  std::shared_ptr<PlayedGates> turn_;
  std::shared_ptr<PlayedGates> last_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<PlayedGates>> all_;
  bool given_up_ = false;
};

thread_local PlayedStage* PlayedStage::entered = nullptr;

// Of an exchange that the stream starts when it comes to it.
struct Started {
  std::shared_ptr<Pending> pending;
};

class StreamPending : public Pending {
 public:
  explicit StreamPending(std::shared_ptr<Started> started) : started_(std::move(started)) {}
  void wait() override {
    if (PlayedStage::entered == nullptr) throw Error("a pending of a turn, waited for outside");
    PlayedStage::entered->stream().enqueue([started = started_] {
      if (started->pending) started->pending->wait();
    });
  }
  bool done() const override { return false; }
  std::string error() const override { return {}; }

 private:
  const std::shared_ptr<Started> started_;
};

class PlayedTeam : public device::Team {
 public:
  explicit PlayedTeam(std::unique_ptr<device::Team> team) : team_(std::move(team)) {}

  int rank() const override { return team_->rank(); }
  int size() const override { return team_->size(); }
  Slot acquire(uint64_t bytes) override { return team_->acquire(bytes); }
  void release(const Slot& slot) noexcept override {
    if (PlayedStage::entered == nullptr) return team_->release(slot);
    PlayedStage::entered->stream().enqueue([this, slot] { team_->release(slot); });
  }
  std::shared_ptr<Pending> start(Exchange exchange) override {
    if (PlayedStage::entered == nullptr) return team_->start(std::move(exchange));
    exchange.keep.reset();  // the collective keeps it
    auto started = std::make_shared<Started>();
    auto kept = std::make_shared<Exchange>(std::move(exchange));
    PlayedStage::entered->stream().enqueue(
        [this, started, kept] { started->pending = team_->start(std::move(*kept)); });
    return std::make_shared<StreamPending>(started);
  }
  device::TeamStats stats() const override { return team_->stats(); }
  std::string error() const override { return team_->error(); }
  void abort(const std::string& reason) noexcept override { team_->abort(reason); }
  void on_failure(std::function<void(const std::string&)> callback) override {
    stream_->on_failure = std::move(callback);
  }
  std::unique_ptr<device::Stage> stage() override { return std::make_unique<PlayedStage>(stream_); }

 private:
  const std::unique_ptr<device::Team> team_;
  const std::shared_ptr<Stream> stream_ = std::make_shared<Stream>();  // ends before the team
};

}  // namespace

std::unique_ptr<device::Team> play_device(std::unique_ptr<device::Team> team) {
  return std::make_unique<PlayedTeam>(std::move(team));
}

}  // namespace tide::test
