// The tuner of one communicator, as the adapters of the ABI versions use it. NCCL hands an error
// from a tuner to the user, it falls back on nothing (src/enqueue.cc, ncclGetAlgoInfo): so nothing
// here fails. A tuner that cannot be set up is a null one, and has no opinion.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "plugin/nccl/types.h"
#include "plugin/tuner/engine.h"

namespace tide::tuner {

// The decisions that were logged already. Neither locks nor allocates; once it is full it says
// that everything was.
class Announced {
 public:
  // True the first time. `key` is not 0.
  bool first(uint64_t key);

 private:
  std::array<std::atomic<uint64_t>, 256> keys_{};
};

class Tuner {
 public:
  Tuner(Engine engine, ncclDebugLogger_t log, size_t ranks, size_t nodes);

  // ABI v3 and newer. Leaves `channels` alone where it has no opinion.
  void ask(int collective, size_t bytes, CostTable table, int* channels);
  // ABI v2.
  void ask(int collective, size_t bytes, bool collnet, bool nvls, int* algorithm, int* protocol,
           int* channels);
  // ABI v6.
  void ask_chunk(int collective, size_t bytes, Entry entry, size_t* chunk);

 private:
  void announce(int collective, size_t bytes, const Decision& decision);

  const Engine engine_;
  const ncclDebugLogger_t log_;
  const size_t ranks_, nodes_;
  Announced announced_;
};

// Reads the profile; null, with one line in NCCL's log, where it is bad or the tuner is switched
// off. `log` may be null.
Tuner* make_tuner(size_t ranks, size_t nodes, ncclDebugLogger_t log) noexcept;

}  // namespace tide::tuner
