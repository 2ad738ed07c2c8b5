// This process's place in the fabric: joining it, memory of its arena, doorbells, dead peers.
//
// There is no server and nothing in the file system. The memory is a memfd; each member answers on
// an abstract socket named after its slot, and hands the memfd to whoever asks. The fabric is gone
// with its last member.
#pragma once

#include <cstdint>

#include "tests/softverbs/layout.h"
#include "tests/softverbs/settings.h"

namespace softverbs {

class Membership {
 public:
  // Joins at the first call; a forked child joins anew. Throws tide::Error.
  static Membership& get();

  const Settings& settings() const { return settings_; }
  Fabric* operator->() const { return fabric_; }
  uint32_t slot() const { return slot_; }
  ProcessEntry& self() const { return fabric_->processes[slot_]; }

  template <class T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(fabric_) + offset);
  }
  // Zeroed memory of the arena, by offset; 0 when it is used up. The fabric's lock is taken.
  uint64_t allocate(uint64_t bytes);
  void release(uint64_t offset, uint64_t bytes);

  // Wakes the steward of a process: its queues have news.
  void ring(uint32_t process);
  // False once the process is gone. Any lock may be held.
  bool alive(uint32_t process);
  // Puts an event (ibv_event_type and its object) into a process's list and rings.
  void post_async(uint32_t process, uint32_t type, uint32_t index);
  // Sets a port and tells every process of its host if that changed it.
  void set_port(uint32_t host, uint32_t device, bool down);

 private:
  explicit Membership(Settings settings);
  bool map(int memory);
  void create();
  void take_slot();
  void reap(uint32_t process);
  void run_steward();
  void serve_bounce();
  int receive_memory(uint32_t process);

  Settings settings_;
  Fabric* fabric_ = nullptr;
  uint32_t slot_ = 0;
  int memory_ = -1;
  int socket_ = -1;
};

// The owner's part of tearing an object down, also done for the dead.
void release_ring(Membership& fabric, ReceiveRing* ring);
void release_queue_pair(Membership& fabric, QueuePairEntry* entry);
void release_completion_queue(Membership& fabric, CompletionQueueEntry* entry);

uint64_t now_ns();

}  // namespace softverbs
