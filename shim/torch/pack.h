// The gradients of a group on their way into a reduce-scatter: FSDP2's pack (chunk_cat) is
// deferred, its fp32 buffer has no memory, and the gradients are held here until they are summed:
// where autograd left them, or copied into a landing slot that was free, so that their own memory
// can be used again at once. It travels in the stripped pack that FSDP2 holds, and dies with it.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <vector>

#include "shim/torch/communicator.h"
#include "shim/torch/group.h"
#include "shim/torch/lease.h"
#include "shim/torch/storage.h"
#include "shim/torch/trace.h"

namespace tide::shim {

class Pack : public Stripped {
 public:
  // sequence: of the group's reduce-scatters. slot: of slot_bytes(gradients), written in the
  // order of the current stream; null: the gradients stay in place.
  Pack(std::shared_ptr<Group> group, std::shared_ptr<ReducePlan> plan,
       std::vector<at::Tensor> gradients, uint64_t sequence, std::shared_ptr<Lease> slot);

  // What the gradients take of a slot.
  static uint64_t slot_bytes(const std::vector<at::Tensor>& gradients);

  const std::shared_ptr<Group>& group() const { return group_; }
  const std::shared_ptr<ReducePlan>& plan() const { return plan_; }

  // Sums into `output` (one rank's shard). `factor` multiplies the sum, once, in fp32.
  c10::intrusive_ptr<c10d::Work> start(const Communicator& communicator, int rank, float factor,
                                       std::chrono::milliseconds timeout, const at::Tensor& output);

  bool started() const { return gradients_.empty(); }
  // What the trace says of one of its moves.
  MoveFacts facts(Move move, uint64_t bytes) const {
    return {move, group_.get(), collective::name(collective::Tier::kLayout), sequence_, bytes};
  }

  // Gives FSDP2's pack the memory and the contents that stock would have.
  static void materialize(const std::shared_ptr<Pack>& pack, const at::Tensor& packed);

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<ReducePlan> plan_;
  std::vector<at::Tensor> gradients_;  // until start(); in a slot they own the lease
  uint64_t sequence_;
  bool in_slot_;
  std::shared_ptr<void> held_;  // from start()
};

}  // namespace tide::shim
