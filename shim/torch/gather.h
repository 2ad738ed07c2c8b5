// One all-gather of a group on its way through FSDP2: copy-in (deferred), collective (into a
// landing slot), copy-out (exchange of data pointers). It travels in the stripped all-gather output
// that FSDP2 holds, and dies with it.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <vector>

#include "shim/torch/communicator.h"
#include "shim/torch/group.h"
#include "shim/torch/storage.h"
#include "shim/torch/trace.h"

namespace tide::shim {

class Gather : public Stripped {
 public:
  // inputs[p]: this rank's shard of parameter p.
  // sequence: of the group's all-gathers. The groups' mutex is held.
  Gather(std::shared_ptr<Group> group, std::shared_ptr<GatherPlan> plan,
         std::vector<at::Tensor> inputs, int rank, uint64_t sequence);
  // Waits for what still lands in the slot: it must not be used again before.
  ~Gather() override;

  const std::shared_ptr<Group>& group() const { return group_; }
  const std::shared_ptr<GatherPlan>& plan() const { return plan_; }
  bool started() const { return work_ != nullptr; }
  // What the trace says of one of its moves.
  MoveFacts facts(Move move, uint64_t bytes) const {
    return {move, group_.get(), collective::name(tier_), sequence_, bytes};
  }

  // Starts the collective on a tier that the ranks have agreed on, kLayout or kCoalesced.
  c10::intrusive_ptr<c10d::Work> start(const c10::intrusive_ptr<c10d::ProcessGroup>& process_group,
                                       const Communicator& communicator, collective::Tier tier,
                                       std::chrono::milliseconds timeout);

  // True when `outs` are what FSDP2 hands to its copy-out: one storage per parameter, whole.
  static bool fits(const GatherPlan& plan, const std::vector<at::Tensor>& outs);
  // Waits for the collective and gives the storages of `outs` their parts of the landing slot.
  void exchange(const std::vector<at::Tensor>& outs);

  // Gives FSDP2's output the memory and the contents that stock would have: after copy-in when not
  // started, after the all-gather when started. The output is an ordinary tensor from then on.
  static void materialize(const std::shared_ptr<Gather>& gather, const at::Tensor& output);

 private:
  // Throws what the collective ended with.
  void wait_for_work();
  std::byte* part(size_t p) const { return landing_ + plan_->layout.pieces[p].base; }

  std::shared_ptr<Group> group_;
  std::shared_ptr<GatherPlan> plan_;
  std::vector<at::Tensor> inputs_;
  int rank_;
  uint64_t sequence_;
  collective::Tier tier_ = collective::Tier::kLayout;  // the group's, from start() this one's
  TracedCollective traced_;                            // of the coalesced tier
  std::byte* landing_ = nullptr;                       // the slot: plan_->layout.slot bytes
  std::shared_ptr<void> lease_;  // gives the slot back when the last storage drops it
  at::Tensor coalesced_;         // the memory of the coalesced tier, torch's own
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace tide::shim
