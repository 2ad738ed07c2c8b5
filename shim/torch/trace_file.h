// A trace in the JSON array format of Chrome's trace viewer, which Perfetto loads as well: one
// event a line. Format: "Trace Event Format",
// docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Knows neither torch nor
// groups.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace tide::shim {

// What an event says of the move that it is about.
struct TraceFacts {
  const char* phase = "";  // "all_gather"
  std::string_view group;  // "layers.3 (group 4)"
  const char* tier = "";   // "layout"
  uint64_t sequence = 0;   // of the group's collectives of this kind, from 1: equal on all ranks
  uint64_t bytes = 0;
};

// Thread-safe. What is written is whole events, so a process that is killed leaves a file that ends
// early and is loaded all the same. Times are those of CLOCK_MONOTONIC, equal for all processes of
// a machine. Holds at most kBuffer bytes; a write that fails ends the trace. A thread of its own
// writes what nothing follows: the last event of a rank that hangs is the one that is looked for.
class TraceFile {
 public:
  using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC
  static constexpr size_t kBuffer = 64 << 10;
  static constexpr std::chrono::seconds kAge{1};  // an event waits about so long for its successors

  // Creates the file. `process`: how the viewer names this rank. Throws tide::Error.
  TraceFile(const std::string& path, int rank, const std::string& process);
  ~TraceFile();  // close()
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // A move that thread `thread` (a kernel's thread id) made from `begin` to `end`.
  void slice(const TraceFacts& facts, int thread, const std::string& thread_name,
             Clock::time_point begin, Clock::time_point end);

  // A move that no thread waits for. Moves that overlap are drawn in different lanes: `open`
  // returns the lane, which `shut` takes. `error`: empty where it went well.
  int open(const TraceFacts& facts, Clock::time_point begin);
  void shut(const TraceFacts& facts, int lane, Clock::time_point end, const std::string& error);

  // Writes what is buffered.
  void flush();
  // Writes the end of the array too; later events are dropped.
  void close();
  // Why writing ended before close(), else empty.
  std::string error() const;

 private:
  struct Lane {
    const char* phase;
    bool busy;
    Clock::time_point free_from;
  };

  void add(const std::string& line, Clock::time_point now);
  void name_thread(int thread, const std::string& name, Clock::time_point now);
  void write_out(Clock::time_point now);
  void write_old_events();

  mutable std::mutex mutex_;
  const std::string path_;
  const int rank_;
  int file_ = -1;
  std::string buffer_;
  size_t written_bytes_ = 0;
  Clock::time_point written_;
  std::string error_;
  std::set<int> named_;  // threads
  std::vector<Lane> lanes_;
  std::condition_variable closed_;
  bool closing_ = false;
  std::thread writer_;
};

}  // namespace tide::shim
