#include "shim/torch/trace.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "include/tide/error.h"
#include "shim/torch/group.h"
#include "shim/torch/log.h"
#include "shim/torch/nvtx.h"
#include "shim/torch/trace_file.h"

namespace tide::shim {
namespace {

using Clock = std::chrono::steady_clock;

struct Trace {
  std::string path;  // of TIDE_TRACE
  pid_t pid = 0;     // a forked child must leave the file alone
  std::atomic<bool> wanted{false};
  bool tool = false;
  std::once_flag made;
  std::unique_ptr<TraceFile> file;
};

Trace& trace() {
  static auto& instance = *new Trace;  // moves are made while static objects are destroyed
  return instance;
}

bool tracing() { return trace().wanted.load(std::memory_order_relaxed); }

// Null without a file.
TraceFile* file() {
  Trace& all = trace();
  if (all.path.empty()) return nullptr;
  std::call_once(all.made, [&] {
    const std::string path = with_rank(all.path);
    try {
      all.file = std::make_unique<TraceFile>(
          path, log_rank(),
          "rank " + std::to_string(log_rank()) + " (pid " + std::to_string(getpid()) + ")");
    } catch (const Error& error) {
      log(LogLevel::kError, error.what());
    }
  });
  return all.file.get();
}

void at_exit() {
  Trace& all = trace();
  if (getpid() != all.pid || !all.file) return;
  all.file->close();
  if (const std::string error = all.file->error(); !error.empty()) log(LogLevel::kError, error);
}

const char* name_of(Move move) { return kMoveNames[static_cast<size_t>(move)]; }

TraceFacts for_file(const MoveFacts& facts, std::string_view label) {
  return {.phase = name_of(facts.move),
          .group = label,
          .tier = facts.tier,
          .sequence = facts.sequence,
          .bytes = facts.bytes};
}

uint64_t begin_range(const MoveFacts& facts) {
  return nvtx_begin(static_cast<uint32_t>(facts.move) + 1, name_of(facts.move),
                    facts.group->label.c_str(), facts.bytes);
}

int thread_number() {
  static thread_local const auto number = static_cast<int>(syscall(SYS_gettid));
  return number;
}

std::string thread_name() {
  char name[16] = "";  // TASK_COMM_LEN of Linux
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

}  // namespace

void start_trace(const Config& config) {
  Trace& all = trace();
  all.path = config.trace;
  all.pid = getpid();
  all.tool = nvtx_attached();
  all.wanted = all.tool || !all.path.empty();
  if (!all.path.empty()) std::atexit(&at_exit);
}

TracedMove::TracedMove(const MoveFacts& facts) : on_(tracing()), facts_(facts) {
  if (!on_) return;
  if (trace().tool) range_ = begin_range(facts_);
  begin_ = Clock::now();
}

TracedMove::~TracedMove() {
  if (!on_) return;
  const auto end = Clock::now();
  if (trace().tool) nvtx_end(range_);
  if (TraceFile* out = file())
    out->slice(for_file(facts_, facts_.group->label), thread_number(), thread_name(), begin_, end);
}

TracedCollective::TracedCollective(const MoveFacts& facts) : on_(tracing()), facts_(facts) {
  if (!on_) return;
  label_ = facts_.group->label;
  if (TraceFile* out = file()) lane_ = out->open(for_file(facts_, label_), Clock::now());
  if (trace().tool) range_ = begin_range(facts_);
  facts_.group = nullptr;
}

TracedCollective::TracedCollective(TracedCollective&& other) noexcept { *this = std::move(other); }

TracedCollective& TracedCollective::operator=(TracedCollective&& other) noexcept {
  on_ = std::exchange(other.on_, false);
  facts_ = other.facts_;
  label_ = std::move(other.label_);
  lane_ = other.lane_;
  range_ = other.range_;
  return *this;
}

void TracedCollective::end(Clock::time_point finished, const std::string& error) {
  if (!std::exchange(on_, false)) return;
  if (trace().tool) nvtx_end(range_);
  if (finished == Clock::time_point{}) finished = Clock::now();
  if (TraceFile* out = lane_ < 0 ? nullptr : file()) {
    out->shut(for_file(facts_, label_), lane_, finished, error);
    if (!error.empty()) out->flush();  // the job is about to end
  }
}

}  // namespace tide::shim
