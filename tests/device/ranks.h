// Runs the ranks of a team for a test: as forked processes, like a job, or as threads of one
// process, where the sanitizers see both ends of every exchange.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shim/device/device.h"

namespace tide::test {

enum class Mode { kProcesses, kThreads };

// Of ranks in processes ThreadSanitizer sees one end of an exchange only.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

// What deadlines of tests are multiplied with where everything runs slower (compute-sanitizer):
// TIDE_TEST_PATIENCE, 1 by default.
int patience();

// Memory that all ranks see: where they put the texts of a rendezvous and what tests note.
class Board {
 public:
  explicit Board(int size);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // Rank `rank`'s part of the next exchange of texts; throws tide::Error after 20 s
  // times patience().
  std::vector<std::string> exchange(int rank, const std::string& mine);
  // Waits for all ranks.
  void barrier(int rank) { exchange(rank, ""); }

  // 64 words for the test, zero at first.
  uint64_t get(int word) const;
  void set(int word, uint64_t value);
  // Waits until it is not zero; false after 20 s times patience().
  bool await(int word) const;

 private:
  struct Shared;
  const int size_;
  Shared* shared_;
};

class BoardRendezvous : public device::Rendezvous {
 public:
  BoardRendezvous(Board& board, int rank) : board_(board), rank_(rank) {}
  std::vector<std::string> exchange(const std::string& mine) override {
    return board_.exchange(rank_, mine);
  }

 private:
  Board& board_;
  const int rank_;
};

// What a rank does; it returns what went wrong, or nothing. Exceptions count as gone wrong.
using RankBody = std::function<std::string(int rank, Board& board)>;

// What became of a rank: its text, or how it ended ("killed by signal 9", "still running").
std::vector<std::string> run_ranks(Mode mode, int size, const RankBody& body);

// The same with processes, while `meanwhile` runs in this one (pids by rank).
std::vector<std::string> run_processes(
    int size, const RankBody& body,
    const std::function<void(const std::vector<pid_t>&, Board&)>& meanwhile);

std::unique_ptr<device::Team> join(int rank, int size, Board& board, int timeout_ms = 20000);

// A number below `limit`, the same on every machine for one seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435761u + 88172645463325252u) {}
  uint64_t below(uint64_t limit);

 private:
  uint64_t state_;
};

}  // namespace tide::test
