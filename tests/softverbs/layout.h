// The fabric: everything the processes of one machine share, in one memory file.
//
// A queue pair's send side is private to its process. What a sender needs of its peer lies here,
// so that it can deliver a message while the peer is busy: the peer's queue pair state, posted
// receives, completion queues and memory regions. Fixed tables hold the objects (untouched entries
// cost no memory), rings of variable size come from an arena behind them and are named by their
// offset, because every process maps the file elsewhere.
//
// Lock order: QueuePairEntry::rx_lock, ReceiveRing::lock, then one of ProcessEntry::gates,
// CompletionQueueEntry::lock or ProcessEntry::async_lock. The fabric's own lock is innermost.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "tests/softverbs/shared_mutex.h"

namespace softverbs {

constexpr uint32_t kHosts = 64;
constexpr uint32_t kDevices = 32;
constexpr uint32_t kProcesses = 64;      // 6 bits of a memory key
constexpr uint32_t kRegions = 8192;      // per process; 13 bits of a memory key
constexpr uint32_t kQueuePairs = 16384;  // 14 bits of a queue pair number
constexpr uint32_t kCompletionQueues = 8192;
constexpr uint32_t kSharedReceiveQueues = 1024;
constexpr uint32_t kGates = 16;
constexpr uint32_t kAsyncRecords = 1024;
constexpr uint32_t kMaxSge = 16;
constexpr uint32_t kMaxInline = 1024;  // bytes
constexpr uint32_t kMaxQueueDepth = 32768;
constexpr uint32_t kMaxCqe = 1 << 20;
constexpr uint64_t kMaxMessage = 1ull << 31;  // bytes, as hardware
constexpr uint64_t kBounceBytes = 256 * 1024;
constexpr uint64_t kFabricBytes = 8ull << 30;  // address space, not memory

// A rail of one host: its port and the time until which each direction is taken.
struct PortEntry {
  std::atomic<uint32_t> down;
  std::atomic<uint64_t> opened_ns;  // first ibv_open_device; `at=` of the fault script counts here
  std::atomic<uint64_t> tx_free_ns;
  std::atomic<uint64_t> rx_free_ns;
};

struct RegionEntry {
  std::atomic<uint32_t> key;  // 0: free
  uint32_t access;
  uint32_t pd;
  uint32_t generation;
  uint64_t iova;  // address the peer names
  uint64_t address;
  uint64_t length;
};

struct Completion {
  ibv_wc wc;
  uint64_t queue_pair;  // the owner's object, for its send queue space; 0 for a receive
  uint64_t reclaim;     // send queue position up to which this completion frees entries
};

struct CompletionQueueEntry {
  SharedMutex lock;
  std::atomic<bool> initialised;
  std::atomic<bool> used;
  bool overrun;
  uint8_t armed;  // 0: no, 1: any completion, 2: solicited ones and errors
  uint32_t owner;
  uint32_t capacity;
  uint32_t generation;
  uint64_t ring;  // Completion[capacity]
  std::atomic<uint64_t> head;
  std::atomic<uint64_t> tail;
  std::atomic<uint32_t> event_due;  // the owner's steward shall write to the completion channel
};

struct PostedReceive {
  uint64_t wr_id;
  uint32_t num_sge;
  ibv_sge sge[kMaxSge];
};

struct ReceiveRing {
  SharedMutex lock;
  uint32_t capacity;
  uint32_t max_sge;
  uint32_t limit;  // of a shared receive queue: event below this many; 0: disarmed
  uint64_t ring;   // PostedReceive[capacity]
  std::atomic<uint64_t> head;
  std::atomic<uint64_t> tail;
};

struct SharedReceiveQueueEntry {
  std::atomic<bool> initialised;
  std::atomic<bool> used;
  uint32_t owner;
  uint32_t pd;
  ReceiveRing receives;
};

struct QueuePairEntry {
  SharedMutex rx_lock;
  std::atomic<bool> initialised;
  std::atomic<bool> used;
  std::atomic<uint32_t> state;  // ibv_qp_state
  uint32_t owner;
  uint32_t generation;
  uint32_t number;
  uint32_t host, device;
  uint32_t pd;
  uint32_t recv_cq;
  int32_t srq;  // -1: own ring
  uint32_t access;
  uint32_t dest_number, dest_host, dest_device;
  uint32_t sq_psn, rq_psn;  // as given; a sender whose first number differs is not heard
  uint32_t min_rnr_timer;
  bool receiving;  // `current` is being filled by a SEND of several pieces
  PostedReceive current;
  ReceiveRing receives;
};

struct AsyncRecord {
  uint32_t type;   // ibv_event_type
  uint32_t index;  // device, queue pair number, or index of the queue
};

// A copy that another process asks this one's steward to do where process_vm_* is forbidden.
struct BounceRequest {
  SharedMutex lock;             // held by the asker for the whole exchange
  std::atomic<uint32_t> state;  // 0 idle, 1 asked, 2 done, 3 fault
  uint32_t write;               // 1: bytes -> address, 0: address -> bytes
  uint64_t address;
  uint64_t length;
  uint8_t bytes[kBounceBytes];
};

struct ProcessEntry {
  SharedMutex alive;  // held by the process's steward until it dies
  std::atomic<bool> initialised;
  std::atomic<uint32_t> used;
  uint32_t host;
  pid_t pid;
  std::atomic<uint32_t> bell;  // a datagram to the steward is on its way
  std::atomic<uint32_t> next_pd;
  SharedMutex gates[kGates];  // one is held while the process's memory is accessed
  SharedMutex atomics;        // RDMA atomics on the process's memory
  SharedMutex async_lock;
  uint32_t async_head, async_tail;
  AsyncRecord async[kAsyncRecords];
  RegionEntry regions[kRegions];
  BounceRequest bounce;
};

struct Fabric {
  std::atomic<uint64_t> magic;
  SharedMutex lock;  // tables and arena
  uint64_t arena_next;
  uint64_t arena_free[64];  // heads of the free lists, by power of two
  PortEntry ports[kHosts][kDevices];
  QueuePairEntry queue_pairs[kQueuePairs];
  CompletionQueueEntry completion_queues[kCompletionQueues];
  SharedReceiveQueueEntry shared_receive_queues[kSharedReceiveQueues];
  ProcessEntry processes[kProcesses];
};

// Changes with the layout, so that two builds never share a fabric.
constexpr uint64_t kMagic = 0x736f667476000001ull ^ (sizeof(Fabric) << 8);

}  // namespace softverbs
