// Several nodes on this machine, one process each, that open a rail to each other over softverbs
// (or over the RDMA devices there are).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/rail/library.h"

constexpr int kMaxNodes = 8;
constexpr size_t kWords = 256;

// What the processes of one run share.
struct Board {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> turn;
  std::atomic<uint64_t> words[kWords];
  char addresses[kMaxNodes][256];
  char errors[kMaxNodes][2048];  // tide_rail_error, where a node leaves it
};

struct Cluster {
  int nodes = 2;
  tide_rail_pacing pacing = TIDE_RAIL_PACE_HEAD;
  uint64_t head_bytes = 64 << 10;
  int queue_pairs = 1;
  int timeout_ms = 20000;
  uint64_t spin_ns = 20000;
  // Environment of every node, "NAME=value".
  std::vector<std::string> environment;
  // Changes the options of one node.
  std::function<void(class Node& node, tide_rail_options& options)> change;
};

// In a node's process. What fails ends the process with a message.
class Node {
 public:
  Node(int number, const Cluster& cluster, Board* board, const RailLibrary& library);

  void open();
  tide_rail_result try_connect();
  void connect();
  uint32_t add_region(void* base, uint64_t bytes);
  void barrier();  // of all nodes that still live
  void must(tide_rail_result result, const char* what);
  void check(bool holds, const std::string& what);
  std::string error() { return library.error(rail); }
  void leave_error();  // on the board
  void close();

  const int number;
  const Cluster& cluster;
  Board& board;
  const RailLibrary& library;
  tide_rail* rail = nullptr;
  int mode = 0;  // for Cluster::change
};

uint64_t now_ns();

// How the processes ended, by node: exit status, or minus the signal. Processes that take longer
// than limit_s are killed; -9 then.
using Body = std::function<void(Node&)>;
class Processes {
 public:
  Processes(const Cluster& cluster, const Body& body);
  ~Processes();
  std::vector<int> wait(int limit_s);
  pid_t pid(int node) const { return pids_[static_cast<size_t>(node)]; }
  Board& board() { return *board_; }

 private:
  Board* board_;
  std::vector<pid_t> pids_;
};
