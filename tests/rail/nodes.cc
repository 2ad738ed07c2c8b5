// Processes of a run: see nodes.h.
#include "tests/rail/nodes.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <sstream>

namespace {

int runs = 0;

void print(void* context, int level, const char* line) {
  static const int limit = getenv("RAIL_LOG") != nullptr ? atoi(getenv("RAIL_LOG")) : -1;
  if (level > limit) return;
  std::fprintf(stderr, "[%.3f] node %d: %s\n", static_cast<double>(now_ns() % 1000000000000) / 1e9,
               *static_cast<int*>(context), line);
}

}  // namespace

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

Node::Node(int node, const Cluster& node_cluster, Board* node_board,
           const RailLibrary& node_library)
    : number(node), cluster(node_cluster), board(*node_board), library(node_library) {}

void Node::open() {
  tide_rail_options options = {};
  options.struct_bytes = sizeof(options);
  options.node = number;
  options.nodes = cluster.nodes;
  options.rail = 0;
  options.rails = 1;
  options.interface = "lo";
  options.pacing = cluster.pacing;
  options.head_bytes = cluster.head_bytes;
  options.queue_pairs = cluster.queue_pairs;
  options.traffic_class = -1;
  options.control_traffic_class = 96;
  options.timeout_ms = cluster.timeout_ms;
  options.core = -1;
  options.spin_ns = cluster.spin_ns;
  options.log = print;
  static int self;
  self = number;
  options.log_context = &self;
  // In the VM: a device for each node, one after the other.
  std::string device;
  if (const char* list = getenv("RAIL_DEVICES"); list != nullptr) {
    std::stringstream devices(list);
    for (int i = 0; i <= number % 2; ++i) std::getline(devices, device, ',');
    options.devices = device.c_str();
  }
  if (cluster.change) cluster.change(*this, options);
  char reason[512] = "";
  const tide_rail_result result = library.open(&options, &rail, reason, sizeof(reason));
  must(result, reason);
  std::snprintf(board.addresses[number], sizeof(board.addresses[number]), "%s",
                library.address(rail));
}

tide_rail_result Node::try_connect() {
  barrier();
  const char* addresses[kMaxNodes];
  for (int i = 0; i < cluster.nodes; ++i) addresses[i] = board.addresses[i];
  return library.connect(rail, addresses);
}

void Node::connect() {
  if (rail == nullptr) open();
  must(try_connect(), "connect");
}

uint32_t Node::add_region(void* base, uint64_t bytes) {
  uint32_t region = 0;
  must(library.add_region(rail, base, bytes, -1, 0, &region), "register");
  return region;
}

void Node::barrier() {
  const uint32_t turn = board.turn.load();
  if (board.arrived.fetch_add(1) + 1 == static_cast<uint32_t>(cluster.nodes)) {
    board.arrived.store(0);
    board.turn.fetch_add(1);
    return;
  }
  while (board.turn.load() == turn) usleep(100);
}

void Node::must(tide_rail_result result, const char* what) {
  if (result == TIDE_RAIL_OK) return;
  check(false, std::string(what) + " returned " + std::to_string(result) + ": " +
                   (rail != nullptr ? library.error(rail) : ""));
}

void Node::check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "node %d: %s\n", number, what.c_str());
  _exit(1);
}

void Node::leave_error() {
  std::snprintf(board.errors[number], sizeof(board.errors[number]), "%s", error().c_str());
}

void Node::close() {
  library.close(rail);
  rail = nullptr;
}

Processes::Processes(const Cluster& cluster, const Body& body) {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  board_ = new (memory) Board{};
  const std::string fabric = "rail-" + std::to_string(getpid()) + "-" + std::to_string(++runs);
  for (int node = 0; node < cluster.nodes; ++node) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child != 0) {
      pids_.push_back(child);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("SOFTVERBS_FABRIC", fabric.c_str(), 1);
    setenv("SOFTVERBS_HOST", std::to_string(node).c_str(), 1);
    setenv("SOFTVERBS_PROCESS", ("node" + std::to_string(node)).c_str(), 1);
    for (const std::string& entry : cluster.environment) {
      const size_t equals = entry.find('=');
      setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
    }
    const char* path = getenv("RAIL_PLUGIN");
    const RailLibrary library(path != nullptr ? path : "build/lib/libnccl-net-tide.so");
    Node self(node, cluster, board_, library);
    body(self);
    if (self.rail != nullptr) self.close();
    std::fflush(nullptr);
    _exit(0);
  }
}

Processes::~Processes() {
  for (const pid_t pid : pids_) {
    if (pid <= 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  munmap(board_, sizeof(Board));
}

std::vector<int> Processes::wait(int limit_s) {
  std::vector<int> ends(pids_.size(), -1000);
  const uint64_t deadline = now_ns() + static_cast<uint64_t>(limit_s) * 1'000'000'000;
  for (size_t left = pids_.size(); left > 0;) {
    for (size_t i = 0; i < pids_.size(); ++i) {
      int status = 0;
      if (pids_[i] <= 0 || waitpid(pids_[i], &status, WNOHANG) != pids_[i]) continue;
      ends[i] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      pids_[i] = 0;
      --left;
    }
    if (now_ns() > deadline) {
      for (const pid_t pid : pids_) {
        if (pid > 0) kill(pid, SIGKILL);
      }
    }
    usleep(500);
  }
  return ends;
}
