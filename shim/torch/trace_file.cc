#include "shim/torch/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>

#include "include/tide/error.h"
#include "include/tide/thread.h"

namespace tide::shim {
namespace {

// Lanes are threads to the viewer; beyond any real one (PID_MAX_LIMIT of Linux is 2^22).
constexpr int kFirstLane = 1 << 24;

// A process that is killed while it writes leaves whole pages of what it wrote (Linux,
// generic_perform_write): no event crosses the border of two.
constexpr size_t kPage = 4096;

std::string quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Microseconds with three decimals, the unit of the format.
std::string micros(std::chrono::nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(time.count() / 1000),
                static_cast<long long>(time.count() % 1000));
  return text;
}

// The members that every event has, of one that begins at `begin`.
std::string event(char kind, const TraceFacts& facts, int rank, int thread,
                  TraceFile::Clock::time_point time) {
  return R"({"ph":")" + std::string(1, kind) + R"(","name":)" +
         quote(std::string(facts.phase) + " " + std::string(facts.group)) + R"(,"cat":")" +
         facts.phase + R"(","pid":)" + std::to_string(rank) + R"(,"tid":)" +
         std::to_string(thread) + R"(,"ts":)" + micros(time.time_since_epoch());
}

std::string arguments(const TraceFacts& facts) {
  return R"(,"args":{"group":)" + quote(facts.group) + R"(,"tier":")" + facts.tier +
         R"(","sequence":)" + std::to_string(facts.sequence) + R"(,"bytes":)" +
         std::to_string(facts.bytes) + "}";
}

std::string metadata(const char* what, int rank, int thread, const std::string& name) {
  return R"({"ph":"M","name":")" + std::string(what) + R"(","pid":)" + std::to_string(rank) +
         R"(,"tid":)" + std::to_string(thread) + R"(,"args":{"name":)" + quote(name) + "}}";
}

}  // namespace

TraceFile::TraceFile(const std::string& path, int rank, const std::string& process)
    : path_(path), rank_(rank) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) {
    throw Error("cannot write TIDE_TRACE=" + path + ": " + std::strerror(errno),
                "name a file in a folder that exists and may be written");
  }
  buffer_.reserve(kBuffer);
  buffer_ = "[\n" + metadata("process_name", rank, 0, process);
  written_ = Clock::now();
  try {
    writer_ = quiet_thread([this] { write_old_events(); });
  } catch (const std::system_error& error) {
    ::close(file_);
    throw Error("cannot start the thread of TIDE_TRACE=" + path + ": " + error.what());
  }
}

TraceFile::~TraceFile() { close(); }

void TraceFile::slice(const TraceFacts& facts, int thread, const std::string& thread_name,
                      Clock::time_point begin, Clock::time_point end) {
  const std::string line = event('X', facts, rank_, thread, begin) + R"(,"dur":)" +
                           micros(end - begin) + arguments(facts) + "}";
  const std::lock_guard lock(mutex_);
  name_thread(thread, thread_name, end);
  add(line, end);
}

int TraceFile::open(const TraceFacts& facts, Clock::time_point begin) {
  const std::lock_guard lock(mutex_);
  size_t lane = 0;
  int number = 1;  // among the lanes of this phase
  for (; lane < lanes_.size(); ++lane) {
    if (std::strcmp(lanes_[lane].phase, facts.phase) != 0) continue;
    if (!lanes_[lane].busy) break;
    ++number;
  }
  if (lane == lanes_.size()) lanes_.push_back({facts.phase, true, {}});
  lanes_[lane].busy = true;
  // Who opens may have read the clock before the lane's last move ended.
  begin = std::max(begin, lanes_[lane].free_from);
  const int thread = kFirstLane + static_cast<int>(lane);
  name_thread(thread, std::string(facts.phase) + " " + std::to_string(number), begin);
  add(event('B', facts, rank_, thread, begin) + arguments(facts) + "}", begin);
  return static_cast<int>(lane);
}

void TraceFile::shut(const TraceFacts& facts, int lane, Clock::time_point end,
                     const std::string& error) {
  std::string line = event('E', facts, rank_, kFirstLane + lane, end);
  if (!error.empty()) line += R"(,"args":{"error":)" + quote(error) + "}";
  line += "}";
  const std::lock_guard lock(mutex_);
  lanes_[lane].busy = false;
  lanes_[lane].free_from = end;
  add(line, end);
}

void TraceFile::flush() {
  const std::lock_guard lock(mutex_);
  write_out(Clock::now());
}

void TraceFile::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (file_ >= 0) {
      buffer_ += "\n]\n";
      write_out(Clock::now());
    }
    if (file_ >= 0) ::close(file_);
    file_ = -1;
  }
  closed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

std::string TraceFile::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void TraceFile::name_thread(int thread, const std::string& name, Clock::time_point now) {
  if (named_.insert(thread).second) add(metadata("thread_name", rank_, thread, name), now);
}

void TraceFile::add(const std::string& line, Clock::time_point now) {
  if (file_ < 0) return;
  const size_t begin = written_bytes_ + buffer_.size();
  const size_t size = line.size() + 2;
  const bool crosses = size <= kPage && begin / kPage != (begin + size - 1) / kPage;
  const size_t padding = crosses ? kPage - begin % kPage : 0;
  if (buffer_.size() + padding + size > kBuffer || now - written_ > kAge) write_out(now);
  buffer_.append(padding, ' ');
  buffer_ += ",\n";
  buffer_ += line;
}

void TraceFile::write_old_events() {
  std::unique_lock lock(mutex_);
  while (!closed_.wait_for(lock, kAge, [this] { return closing_; })) {
    if (!buffer_.empty()) write_out(Clock::now());
  }
}

// Ends behind a line's last character, before the comma: the next line brings it.
void TraceFile::write_out(Clock::time_point now) {
  written_ = now;
  if (file_ < 0) return;
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t wrote = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      error_ = "the trace ends early: cannot write " + path_ + ": " + std::strerror(errno);
      ::close(file_);
      file_ = -1;
      break;
    }
    done += static_cast<size_t>(wrote);
    written_bytes_ += static_cast<size_t>(wrote);
  }
  buffer_.clear();
}

}  // namespace tide::shim
