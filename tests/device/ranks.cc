// Forks or threads, a board in shared memory, and pipes for what ranks report.
#include "tests/device/ranks.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "include/tide/error.h"
#include "shim/device/host/team.h"

namespace tide::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLongest{20};  // times patience()

// Polls: a rank that waits on the board must not hang on one that was killed.
template <class Condition>
bool eventually(Condition condition) {
  const auto deadline = Clock::now() + kLongest * patience();
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::string guarded(const RankBody& body, int rank, Board& board) {
  try {
    return body(rank, board);
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
}

std::string read_all(int fd, Clock::time_point deadline) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd watched{fd, POLLIN, 0};
    if (left <= 0 || poll(&watched, 1, static_cast<int>(left)) <= 0) return text;
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got <= 0) return text;
    text.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace

int patience() {
  static const char* const text = std::getenv("TIDE_TEST_PATIENCE");
  static const int times = text == nullptr ? 1 : std::max(1, std::atoi(text));
  return times;
}

constexpr int kMostRanks = 16;
constexpr int kLongestText = 512;

struct Board::Shared {
  std::atomic<uint64_t> rounds[kMostRanks];  // that a rank has put its text of
  char texts[2][kMostRanks][kLongestText];   // of even and odd rounds
  std::atomic<uint64_t> words[64];
};

Board::Board(int size) : size_(size) {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || size > kMostRanks) throw Error("no board");
  shared_ = new (memory) Shared();
}

Board::~Board() { munmap(shared_, sizeof(Shared)); }

std::vector<std::string> Board::exchange(int rank, const std::string& mine) {
  const uint64_t round = shared_->rounds[rank].load(std::memory_order_relaxed) + 1;
  if (mine.size() >= kLongestText) throw Error("a text of " + std::to_string(mine.size()));
  auto& texts = shared_->texts[round % 2];
  std::memcpy(texts[rank], mine.c_str(), mine.size() + 1);
  shared_->rounds[rank].store(round, std::memory_order_release);
  std::vector<std::string> all;
  for (int q = 0; q < size_; ++q) {
    if (!eventually([&] { return shared_->rounds[q].load(std::memory_order_acquire) >= round; })) {
      throw Error("rank " + std::to_string(q) + " stayed away from the rendezvous");
    }
    all.emplace_back(texts[q]);
  }
  return all;
}

uint64_t Board::get(int word) const { return shared_->words[word].load(std::memory_order_acquire); }
void Board::set(int word, uint64_t value) {
  shared_->words[word].store(value, std::memory_order_release);
}
bool Board::await(int word) const {
  return eventually([&] { return get(word) != 0; });
}

std::vector<std::string> run_processes(
    int size, const RankBody& body,
    const std::function<void(const std::vector<pid_t>&, Board&)>& meanwhile) {
  Board board(size);
  std::vector<pid_t> pids;
  std::vector<int> pipes;
  const pid_t parent = getpid();
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw Error("no pipe");
    const pid_t pid = fork();
    if (pid < 0) throw Error("cannot fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      for (int fd : pipes) close(fd);
      close(ends[0]);
      const std::string text = guarded(body, rank, board);
      const bool written = write(ends[1], text.data(), text.size()) >= 0;
      _exit(written ? 0 : 1);
    }
    close(ends[1]);
    pids.push_back(pid);
    pipes.push_back(ends[0]);
  }
  if (meanwhile) meanwhile(pids, board);
  std::vector<std::string> results;
  const auto deadline = Clock::now() + std::chrono::seconds(40 * patience());
  for (int rank = 0; rank < size; ++rank) {
    std::string text = read_all(pipes[rank], deadline);
    close(pipes[rank]);
    if (Clock::now() >= deadline) {
      text += "still running";
      kill(pids[rank], SIGKILL);
    }
    int status = 0;
    waitpid(pids[rank], &status, 0);
    if (WIFSIGNALED(status)) text += "killed by signal " + std::to_string(WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
      text += "exit status " + std::to_string(WEXITSTATUS(status));
    }
    results.push_back(text);
  }
  return results;
}

std::vector<std::string> run_ranks(Mode mode, int size, const RankBody& body) {
  if (mode == Mode::kProcesses) return run_processes(size, body, nullptr);
  Board board(size);
  std::vector<std::string> results(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { results[rank] = guarded(body, rank, board); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::unique_ptr<device::Team> join(int rank, int size, Board& board, int timeout_ms) {
  BoardRendezvous rendezvous(board, rank);
  return device::make_host_team(rank, size, rendezvous,
                                {.timeout = std::chrono::milliseconds(timeout_ms), .names = {}});
}

uint64_t Random::below(uint64_t limit) {
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return state_ % limit;
}

}  // namespace tide::test
