// A turn's words in pinned host memory, and the stream operations that wait for and write them.
#include "shim/device/cuda/stage.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "include/tide/error.h"
#include "shim/device/cuda/driver.h"
#include "shim/device/cuda/memory.h"

namespace tide::device::cuda {
namespace {

thread_local CUstream entered = nullptr;

// Host memory that streams reach too.
struct Pinned {
  std::shared_ptr<host::Mapping> memory;
  PinnedMapping mapping;

  Pinned(const std::shared_ptr<Context>& context, uint64_t bytes)
      : memory(host::create_memory(bytes).mapping), mapping(context, memory) {}
  CUdeviceptr address_of(const volatile void* at) const {
    return mapping.address() + (static_cast<const volatile std::byte*>(at) - memory->data());
  }
};

// The words of one turn: two of the stage's own, then the gates.
struct Words {
  const Pinned* pinned = nullptr;
  volatile uint32_t* first = nullptr;
  int count = 0;
};
enum Own { kCarried, kOver, kOwnWords };

// Lends words and takes them back; opens them all when the stage is given up. Gates keep it.
class WordPool {
 public:
  explicit WordPool(std::shared_ptr<Context> context) : context_(std::move(context)) {}

  Words take(int count) {
    const std::lock_guard lock(mutex_);
    auto found = std::ranges::find_if(free_, [&](const Words& w) { return w.count >= count; });
    Words words;
    if (found != free_.end()) {
      words = *found;
      free_.erase(found);
    } else {
      words = make(count);
    }
    for (int i = 0; i < words.count; ++i) words.first[i] = 0;
    if (given_up_) open(words);
    lent_.push_back(words);
    return words;
  }

  void give(const Words& words) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase_if(lent_, [&](const Words& lent) { return lent.first == words.first; });
    free_.push_back(words);
  }

  void give_up() noexcept {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    for (const Words& words : lent_) open(words);
  }

 private:
  static void open(const Words& words) {
    for (int i = 0; i < words.count; ++i) {
      if (i != kOver) __atomic_store_n(&words.first[i], 1, __ATOMIC_RELEASE);
    }
  }

  Words make(int count) {
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(uint32_t);
    if (pages_.empty() || pages_.back()->memory->bytes() - used_ < bytes) {
      const Current current(*context_);
      pages_.push_back(std::make_unique<Pinned>(context_, std::max<uint64_t>(bytes, 64 << 10)));
      used_ = 0;
    }
    const Pinned& page = *pages_.back();
    const Words words{&page, reinterpret_cast<uint32_t*>(page.memory->data() + used_), count};
    used_ += bytes;
    return words;
  }

  const std::shared_ptr<Context> context_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Pinned>> pages_;
  uint64_t used_ = 0;  // of the last page
  std::vector<Words> free_;
  std::vector<Words> lent_;
  bool given_up_ = false;
};

class CudaGates : public Gates {
 public:
  CudaGates(std::shared_ptr<WordPool> pool, int count)
      : pool_(std::move(pool)), words_(pool_->take(kOwnWords + count)) {}
  // A stream may still wait for words of a turn that is not over: they are not lent again.
  ~CudaGates() override {
    if (over()) pool_->give(words_);
  }

  volatile uint32_t* word(int gate) override { return &words_.first[kOwnWords + gate]; }
  void carried() override { __atomic_store_n(&words_.first[kCarried], 1, __ATOMIC_RELEASE); }
  bool over() override {
    if (__atomic_load_n(&words_.first[kOver], __ATOMIC_ACQUIRE) == 0) return false;
    before.reset();
    return true;
  }
  CUdeviceptr address(int word) const { return words_.pinned->address_of(&words_.first[word]); }

  std::shared_ptr<CudaGates> before;  // of the turn before, for which this one waits

 private:
  const std::shared_ptr<WordPool> pool_;
  const Words words_;
};

class CudaStage : public Stage {
 public:
  CudaStage(std::shared_ptr<Context> context, std::function<CUstream()> current_stream)
      : context_(context),
        current_stream_(std::move(current_stream)),
        events_(std::make_shared<EventPool>(context)),
        words_(std::make_shared<WordPool>(context)),
        stream_(std::make_unique<Stream>(context)) {}

  // Where the last turn is not over, what the stream may still touch is left as it is.
  ~CudaStage() override {
    if (last_ == nullptr || last_->over()) return;
    new std::shared_ptr<CudaGates>(std::move(last_));
    new std::vector<std::unique_ptr<Pinned>>(std::move(mirrors_));
    static_cast<void>(stream_.release());
  }

  std::span<std::byte> host(uint64_t bytes) override {
    if (mirrors_.empty() || mirrors_.back()->memory->bytes() < bytes) {
      const Current current(*context_);
      // Doubling keeps the sum of what is left over below what is in use.
      if (!mirrors_.empty()) bytes = std::max(bytes, 2 * mirrors_.back()->memory->bytes());
      mirrors_.push_back(std::make_unique<Pinned>(context_, bytes));
    }
    return {mirrors_.back()->memory->data(), mirrors_.back()->memory->bytes()};
  }

  std::shared_ptr<Gates> gates(int count) override {
    return std::make_shared<CudaGates>(words_, count);
  }

  void begin(const std::shared_ptr<Gates>& gates) override {
    const Current current(*context_);
    const Event entry = events_->record(current_stream_());
    check(driver().cuStreamWaitEvent(stream_->get(), entry.get(), /*flags=*/0),
          "wait for the caller");
    turn_ = std::static_pointer_cast<CudaGates>(gates);
    if (last_ != nullptr) {
      turn_->before = last_;
      operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, *last_, kCarried);
    }
    entered = stream_->get();
  }

  void copy(void* to, const void* from, uint64_t bytes) override {
    const Current current(*context_);
    check(driver().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                 reinterpret_cast<CUdeviceptr>(from), bytes, stream_->get()),
          "copy between a GPU and host memory");
  }

  void open(int gate) override {
    operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, *turn_, kOwnWords + gate);
  }
  void await(int gate) override {
    operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, *turn_, kOwnWords + gate);
  }

  std::function<void()> end() override {
    const Current current(*context_);
    operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, *turn_, kOver);
    const Event end = events_->record(stream_->get());
    last_ = std::move(turn_);
    leave();
    return [context = context_, current_stream = current_stream_, end] {
      const Current current(*context);
      check(driver().cuStreamWaitEvent(current_stream(), end.get(), /*flags=*/0),
            "wait for a collective");
    };
  }

  void leave() noexcept override {
    entered = nullptr;
    // Words of a turn that was not enqueued whole are never over, and so never lent again.
    if (turn_ != nullptr) last_ = std::move(turn_);
  }

  void give_up() noexcept override { words_->give_up(); }

 private:
  void operation(CUstreamBatchMemOpType type, const CudaGates& gates, int word) {
    CUstreamBatchMemOpParams operation{};
    if (type == CU_STREAM_MEM_OP_WRITE_VALUE_32) {
      operation.writeValue.operation = type;
      operation.writeValue.address = gates.address(word);
      operation.writeValue.value = 1;
      // With a memory barrier: what was copied is there before.
      operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    } else {
      operation.waitValue.operation = type;
      operation.waitValue.address = gates.address(word);
      operation.waitValue.value = 1;
      operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    }
    const Current current(*context_);
    check(driver().cuStreamBatchMemOp(stream_->get(), 1, &operation, /*flags=*/0),
          "enqueue a gate");
  }

  const std::shared_ptr<Context> context_;
  const std::function<CUstream()> current_stream_;
  const std::shared_ptr<EventPool> events_;
  const std::shared_ptr<WordPool> words_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Pinned>> mirrors_;
  std::shared_ptr<CudaGates> turn_;  // that is being enqueued
  std::shared_ptr<CudaGates> last_;  // that was
};

}  // namespace

CUstream entered_stream() { return entered; }

std::unique_ptr<Stage> make_stage(std::shared_ptr<Context> context,
                                  std::function<CUstream()> current_stream) {
  const Current current(*context);
  return std::make_unique<CudaStage>(std::move(context), std::move(current_stream));
}

}  // namespace tide::device::cuda
