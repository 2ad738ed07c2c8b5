// How collectives between nodes reach memory that rails cannot register: through a mirror in host
// memory. All that the device does for a collective is enqueued when it is called, by the thread
// that calls it; where the network comes in, the device's stream waits for a word in host memory,
// or writes one. So the thread that speaks to the network never calls the device, and nothing that
// stops callers of the device (another thread that frees its memory) can stop it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace tide::device {

// Points of one collective that its stream or the thread of the network comes to: 32-bit words of
// host memory, 0 and then 1. When the stage is given up all are 1.
class Gates {
 public:
  virtual ~Gates() = default;
  virtual volatile uint32_t* word(int gate) = 0;
  bool open(int gate) { return __atomic_load_n(word(gate), __ATOMIC_ACQUIRE) != 0; }

  // The network is through with the mirror: the next turn may begin.
  virtual void carried() = 0;
  // The stream came to the end of the turn. Stays false when the stage is given up before.
  virtual bool over() = 0;
};

// Of one team. The functions from begin() to leave() are for one thread at a time; they throw
// tide::Error when the device refuses.
class Stage {
 public:
  virtual ~Stage() = default;

  // Host memory of at least `bytes` that copy() reaches; the same until more is asked for. None of
  // it is freed before the stage: it may be registered with a NIC.
  virtual std::span<std::byte> host(uint64_t bytes) = 0;
  // `count` gates, all 0, until the last owner lets go, not before they are over().
  virtual std::shared_ptr<Gates> gates(int count) = 0;

  // A turn: from here to end() or leave() what this thread enqueues here, and the exchanges that it
  // starts and waits for, are in the order of the stage's stream, behind what the thread's current
  // stream holds now and behind the turn before, once that one is carried().
  virtual void begin(const std::shared_ptr<Gates>& gates) = 0;
  // Between the mirror and memory of the device.
  virtual void copy(void* to, const void* from, uint64_t bytes) = 0;
  // The stream opens this gate of the turn; the stream goes on when it is open.
  virtual void open(int gate) = 0;
  virtual void await(int gate) = 0;
  // The end of the turn. What it returns makes the current stream of the thread that calls it wait
  // for that; from any thread, also when the stage is no more.
  virtual std::function<void()> end() = 0;
  // Ends a turn that could not be enqueued whole. Nothing after end().
  virtual void leave() noexcept = 0;

  // Opens all gates, also those to come, so that no stream waits for ever: the collectives failed.
  // From any thread.
  virtual void give_up() noexcept = 0;
};

}  // namespace tide::device
