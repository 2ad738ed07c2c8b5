// Joining the fabric, its arena, and the reaping of dead members. The steward is in steward.cc.
#include "tests/softverbs/fabric.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <thread>

#include "include/tide/error.h"
#include "tests/softverbs/sockets.h"

namespace softverbs {
namespace {

constexpr uint64_t kArenaStart = (sizeof(Fabric) + 4095) / 4096 * 4096;

Membership* g_membership = nullptr;
std::mutex g_membership_lock;

std::string system_error(const std::string& what) { return what + ": " + std::strerror(errno); }

// Joins one after the other, so that two first members cannot make two fabrics. The kernel frees
// the name when its holder dies.
int lock_joining(const std::string& fabric) {
  for (int tries = 0; tries < 20000; ++tries) {
    int socket = bind_abstract(fabric + "/join");
    if (socket >= 0) return socket;
    if (errno != EADDRINUSE) throw tide::Error(system_error("softverbs: cannot bind a socket"));
    usleep(1000);
  }
  throw tide::Error("softverbs: another process has been joining fabric " + fabric + " for 20 s",
                    "end it, or use another SOFTVERBS_FABRIC");
}

// Whether the process in a slot has died: its steward held this lock all its life.
bool abandoned(ProcessEntry& entry) {
  if (!entry.alive.try_lock()) return false;
  entry.alive.unlock();
  return true;
}

}  // namespace

uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000ull + static_cast<uint64_t>(time.tv_nsec);
}

Membership& Membership::get() {
  std::lock_guard hold(g_membership_lock);
  if (g_membership == nullptr) {
    // Never destroyed: threads may use it until the process ends.
    g_membership = new Membership(read_settings());
    static bool watching = [] {
      // A child does not inherit the threads. It must not keep its parent's names bound either.
      pthread_atfork([] { g_membership_lock.lock(); }, [] { g_membership_lock.unlock(); },
                     [] {
                       g_membership_lock.unlock();
                       if (g_membership == nullptr) return;
                       close(g_membership->socket_);
                       close(g_membership->memory_);
                       g_membership = nullptr;
                     });
      return true;
    }();
    (void)watching;
  }
  return *g_membership;
}

Membership::Membership(Settings settings) : settings_(std::move(settings)) {
  // Lets members of the same user reach this memory where Yama restricts ptrace.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  int joining = lock_joining(settings_.fabric);
  for (uint32_t process = 0; process < kProcesses && fabric_ == nullptr; ++process) {
    int memory = receive_memory(process);
    if (memory >= 0 && !map(memory)) close(memory);
  }
  if (fabric_ == nullptr) create();
  take_slot();
  close(joining);
}

// Asks a member for the fabric's memory; -1 if there is none in that slot.
int Membership::receive_memory(uint32_t process) {
  int socket = bind_abstract("");
  if (socket < 0) throw tide::Error(system_error("softverbs: cannot make a socket"));
  int memory = -1;
  if (send_abstract(socket, member_name(settings_.fabric, process), 'J')) {
    pollfd wait{socket, POLLIN, 0};
    // A stopped member does not answer; another one will.
    if (poll(&wait, 1, 2000) == 1) memory = receive_descriptor(socket);
  }
  close(socket);
  return memory;
}

bool Membership::map(int memory) {
  void* address =
      mmap(nullptr, kFabricBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory, 0);
  if (address == MAP_FAILED) throw tide::Error(system_error("softverbs: cannot map the fabric"));
  auto* fabric = static_cast<Fabric*>(address);
  if (fabric->magic.load() != 0 && fabric->magic.load() != kMagic) {
    munmap(address, kFabricBytes);
    throw tide::Error("softverbs: fabric " + settings_.fabric + " belongs to another build",
                      "end its processes, or use another SOFTVERBS_FABRIC");
  }
  fabric_ = fabric;
  memory_ = memory;
  return true;
}

void Membership::create() {
  int memory = memfd_create("softverbs", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, kFabricBytes) != 0) {
    throw tide::Error(system_error("softverbs: cannot make the fabric's memory"));
  }
  map(memory);
  fabric_->lock.init();
  fabric_->arena_next = kArenaStart;
  fabric_->magic.store(kMagic);
}

void Membership::take_slot() {
  for (slot_ = 0; slot_ < kProcesses; ++slot_) {
    ProcessEntry& entry = self();
    if (entry.used.load()) {
      if (!abandoned(entry)) continue;
      reap(slot_);
    }
    if (!entry.initialised) {
      entry.alive.init();
      for (auto& gate : entry.gates) gate.init();
      entry.atomics.init();
      entry.async_lock.init();
      entry.bounce.lock.init();
      entry.initialised = true;
    }
    socket_ = bind_abstract(member_name(settings_.fabric, slot_));
    if (socket_ < 0) continue;  // a stopped child of the former owner may still hold the name
    entry.pid = getpid();
    entry.host = settings_.host;
    entry.bell.store(0);
    entry.async_head = entry.async_tail = 0;
    entry.bounce.state.store(0);
    std::atomic<bool> ready{false};
    std::thread([this, &ready] {
      self().alive.lock();
      self().used.store(1);
      ready.store(true);
      ready.notify_one();
      run_steward();
    }).detach();
    ready.wait(false);
    return;
  }
  throw tide::Error("softverbs: fabric " + settings_.fabric + " has its " +
                        std::to_string(kProcesses) + " processes",
                    "use another SOFTVERBS_FABRIC");
}

bool Membership::alive(uint32_t process) {
  ProcessEntry& entry = fabric_->processes[process];
  if (!entry.used.load()) return false;
  return process == slot_ || !abandoned(entry);
}

void release_ring(Membership& fabric, ReceiveRing* ring) {
  fabric.release(ring->ring, ring->capacity * sizeof(PostedReceive));
  ring->capacity = 0;
  ring->ring = 0;
}

void release_queue_pair(Membership& fabric, QueuePairEntry* entry) {
  {
    // Whoever is delivering to it finishes first.
    std::lock_guard hold(entry->rx_lock);
    entry->state.store(IBV_QPS_RESET);
    entry->number = 0;
  }
  if (entry->srq < 0) release_ring(fabric, &entry->receives);
  std::lock_guard hold(fabric->lock);
  entry->used = false;
}

void release_completion_queue(Membership& fabric, CompletionQueueEntry* entry) {
  fabric.release(entry->ring, entry->capacity * sizeof(Completion));
  std::lock_guard hold(fabric->lock);
  entry->used = false;
}

// Takes back what a dead process owned. Only a joining process does this, under the lock of the
// join. Queue pairs first: from then on nobody finds the rest.
void Membership::reap(uint32_t process) {
  ProcessEntry& entry = fabric_->processes[process];
  for (auto& pair : fabric_->queue_pairs) {
    if (pair.used && pair.owner == process) release_queue_pair(*this, &pair);
  }
  for (auto& queue : fabric_->shared_receive_queues) {
    if (!queue.used || queue.owner != process) continue;
    release_ring(*this, &queue.receives);
    std::lock_guard hold(fabric_->lock);
    queue.used = false;
  }
  for (auto& queue : fabric_->completion_queues) {
    if (queue.used && queue.owner == process) release_completion_queue(*this, &queue);
  }
  for (auto& region : entry.regions) region.key.store(0);
  entry.used.store(0);
}

uint64_t Membership::allocate(uint64_t bytes) {
  int power = std::bit_width(std::max<uint64_t>(bytes, 64) - 1);
  uint64_t size = 1ull << power, offset;
  {
    std::lock_guard hold(fabric_->lock);
    offset = fabric_->arena_free[power];
    if (offset != 0) {
      fabric_->arena_free[power] = *at<uint64_t>(offset);
    } else if (fabric_->arena_next + size > kFabricBytes) {
      return 0;
    } else {
      offset = fabric_->arena_next;
      fabric_->arena_next += size;
      return offset;  // fresh memory is zero
    }
  }
  std::memset(at<void>(offset), 0, bytes);
  return offset;
}

void Membership::release(uint64_t offset, uint64_t bytes) {
  if (offset == 0) return;
  int power = std::bit_width(std::max<uint64_t>(bytes, 64) - 1);
  std::lock_guard hold(fabric_->lock);
  *at<uint64_t>(offset) = fabric_->arena_free[power];
  fabric_->arena_free[power] = offset;
}

void Membership::ring(uint32_t process) {
  // One datagram is enough for all news until the steward has seen it.
  if (fabric_->processes[process].bell.exchange(1) == 0) {
    send_abstract(socket_, member_name(settings_.fabric, process), 'D');
  }
}

void Membership::post_async(uint32_t process, uint32_t type, uint32_t index) {
  ProcessEntry& entry = fabric_->processes[process];
  {
    std::lock_guard hold(entry.async_lock);
    if (entry.async_tail - entry.async_head == kAsyncRecords) return;  // nobody reads them
    entry.async[entry.async_tail % kAsyncRecords] = {type, index};
    ++entry.async_tail;
  }
  ring(process);
}

void Membership::set_port(uint32_t host, uint32_t device, bool down) {
  if (fabric_->ports[host][device].down.exchange(down) == down) return;
  for (uint32_t process = 0; process < kProcesses; ++process) {
    ProcessEntry& entry = fabric_->processes[process];
    if (entry.used.load() && entry.host == host) {
      post_async(process, down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE, device);
    }
  }
}

}  // namespace softverbs
