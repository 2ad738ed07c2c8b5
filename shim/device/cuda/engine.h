// Enqueues an exchange: all of it, by the thread that starts it, in one go, once all ranks have
// said where it lands. No thread of ours has to run for it to complete, and every operation waits
// only for operations that all ranks enqueue at the same exchange or before: however streams are
// mapped onto hardware channels, and whatever else blocks a host thread between two exchanges
// (cudaFree, a kernel that is loaded), the GPUs come to the end.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shim/device/cuda/context.h"
#include "shim/device/cuda/flight.h"
#include "shim/device/cuda/multicast_sum.h"
#include "shim/device/cuda/parts.h"
#include "shim/device/cuda/sum.h"
#include "shim/device/device.h"

namespace tide::device::cuda {

class Engine {
 public:
  // The context is current here and in enqueue(). Throws tide::Error.
  Engine(std::shared_ptr<Context> context, const Lookout& lookout, const Flight& flight,
         SumSettings settings, uint64_t part_bytes);

  // Enqueues `exchange`, whose landings are known, behind what `caller` holds now and behind
  // `fences`, and records job.end.
  // `before`: the end of the exchange whose words it uses again, or null. Throws tide::Error when
  // the driver refuses; part of it may then be enqueued.
  void enqueue(Job& job, Exchange& exchange, CUstream caller, const std::vector<Fence>& fences,
               const Event& before);

  // From now on segment `segment` of all ranks lies behind multicast address `address`: what goes
  // to the same place of it on every rank goes there once. `sums`: the switch also adds where it
  // can, on all ranks or on none. Before the first exchange; the context is current. Throws
  // tide::Error.
  void use_multicast(uint32_t segment, CUdeviceptr address, bool sums);

  // An event recorded on `stream` now.
  Event record(CUstream stream) { return events_->record(stream); }
  uint64_t bytes_pushed() const { return bytes_pushed_.load(std::memory_order_relaxed); }

 private:
  class MemoryOperations;
  class Copies;

  // One for what is pushed, one for what this rank copies and sums on its own GPU meanwhile.
  struct Streams {
    explicit Streams(const std::shared_ptr<Context>& context) : pushes(context), own(context) {}
    Stream pushes, own;
  };

  const Streams& streams_for(CUstream caller);
  // act(q, board of q) for every other rank q, from rank + 1 on.
  template <class Act>
  void for_each_peer(Act act) const;
  // What board.h says of these words, to and from every other rank; following: parts.
  void say_ready(const Job& job, MemoryOperations& words) const;
  void await_ready(const Job& job, MemoryOperations& words) const;
  void say_arrived(const Job& job, MemoryOperations& words, int following = 0) const;
  void await_arrived(const Job& job, MemoryOperations& words, int following = 0) const;
  // The multicast address of the landing slots, where they lie at one offset of it.
  std::optional<CUdeviceptr> common_slots(const Job& job) const;
  // Behind what streams.pushes holds, whose end waits for all; so does push_and_sum().
  void push(const Job& job, const std::vector<Push>& pushes, MemoryOperations& words,
            const Streams& streams);
  // The pushes and the sum of a reduce-scatter, but for its zeros: part by part, of which the one
  // is summed while the next is on its way.
  void push_and_sum(const Job& job, Exchange& exchange, int parts, MemoryOperations& words,
                    const Streams& streams);
  // Pushes to all ranks at once what may go so, and takes it out of `pushes`.
  void push_to_all(const Job& job, CUdeviceptr slots, std::vector<Push>& pushes,
                   MemoryOperations& words, CUstream stream);
  // Instead of pushes and sum: multicast_reduce.h. Leaves the zeros.
  void add_in_switch(const Job& job, Exchange& exchange, CUdeviceptr slots, MemoryOperations& words,
                     CUstream stream);

  const std::shared_ptr<Context> context_;
  const Lookout& lookout_;
  const Flight& flight_;
  const SumSettings settings_;
  const uint64_t part_bytes_;
  const std::shared_ptr<EventPool> events_;
  const SumKernels kernels_;
  uint32_t multicast_segment_ = 0;  // 0: none
  CUdeviceptr multicast_address_ = 0;
  std::optional<LoadReduceKernels> switch_kernels_;  // where the switch may add
  std::vector<std::unique_ptr<Streams>> streams_;
  std::vector<std::pair<CUstream, const Streams*>> streams_of_callers_;
  std::atomic<uint64_t> bytes_pushed_{0};
};

}  // namespace tide::device::cuda
