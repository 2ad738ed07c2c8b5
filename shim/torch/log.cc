#include "shim/torch/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>

namespace tide::shim {
namespace {

std::atomic<LogLevel> level_limit{LogLevel::kWarn};
std::atomic<int> rank_of_process{0};

}  // namespace

void set_log(LogLevel level, int rank) {
  level_limit = level;
  rank_of_process = rank;
}

int log_rank() { return rank_of_process; }

std::string with_rank(std::string path) {
  for (size_t at = path.find("%r"); at != std::string::npos; at = path.find("%r"))
    path.replace(at, 2, std::to_string(log_rank()));
  return path;
}

void log(LogLevel level, const std::string& text) {
  if (level > level_limit.load()) return;
  const char* names[] = {"error", "warn", "info", "debug"};
  // One call, one line: ranks share the terminal.
  std::fprintf(stderr, "tide: [rank %d] %s: %s\n", log_rank(), names[static_cast<int>(level)],
               text.c_str());
}

void log_once(LogLevel level, const std::string& text) {
  static std::mutex mutex;
  static auto& said = *new std::set<std::string>;
  if (log_rank() != 0) return;
  std::lock_guard lock(mutex);
  if (said.insert(text).second) log(level, text);
}

}  // namespace tide::shim
