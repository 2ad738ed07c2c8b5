#include "shim/torch/gather.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <optional>

#include "shim/collective/all_gather.h"
#include "shim/collective/node_all_gather.h"
#include "shim/torch/accelerator.h"
#include "shim/torch/lease.h"
#include "shim/torch/storage.h"
#include "shim/torch/work.h"

namespace tide::shim {
namespace {

at::Tensor bytes_at(const void* data, uint64_t bytes, at::Device device) {
  return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(bytes)},
                       at::TensorOptions().dtype(at::kByte).device(device));
}

}  // namespace

Gather::Gather(std::shared_ptr<Group> group, std::shared_ptr<GatherPlan> plan,
               std::vector<at::Tensor> inputs, int rank, uint64_t sequence)
    : group_(std::move(group)),
      plan_(std::move(plan)),
      inputs_(std::move(inputs)),
      rank_(rank),
      sequence_(sequence) {
  if (plan_->tier == collective::Tier::kCoalesced) tier_ = collective::Tier::kCoalesced;
  // A shard that is not contiguous here is put in order by this rank alone: going stock would need
  // all ranks to agree.
  for (at::Tensor& input : inputs_) input = input.contiguous();
}

Gather::~Gather() {
  if (!work_) return;
  try {
    wait_for_work();
  } catch (const std::exception&) {
    // A failed team does not use its slots again, and FSDP2 has waited itself or gives up.
  }
}

void Gather::wait_for_work() {
  try {
    work_->wait();
  } catch (const std::exception& error) {
    traced_.end({}, error.what());
    throw;
  }
  traced_.end({});
}

c10::intrusive_ptr<c10d::Work> Gather::start(
    const c10::intrusive_ptr<c10d::ProcessGroup>& process_group, const Communicator& communicator,
    collective::Tier tier, std::chrono::milliseconds timeout) {
  const layout::GatherLayout& layout = plan_->layout;
  tier_ = tier;
  const MoveFacts moved = facts(Move::kAllGather, layout.shard * layout.world);
  if (tier == collective::Tier::kLayout) {
    auto lease =
        std::make_shared<Lease>(communicator.team, communicator.team->acquire(layout.slot));
    {
      const std::lock_guard lock(groups().mutex);
      group_->landing = communicator.team;
    }
    landing_ = lease->slot.data;
    std::vector<const void*> shards;
    for (const at::Tensor& input : inputs_) {
      shards.push_back(input.const_data_ptr());
      use_on_current_stream(input);  // it may be of the copy-in stream's pool
    }
    collective::Call call{.what = "all-gather of " + group_->label,
                          .timeout = timeout,
                          .keep = std::make_shared<std::vector<at::Tensor>>(inputs_)};
    const bool seen = plan_->shape.device.is_cpu();  // when it is complete
    TracedCollective traced = seen ? TracedCollective(moved) : TracedCollective();
    std::optional<TracedMove> enqueued;
    if (!seen) enqueued.emplace(moved);
    auto pending =
        communicator.gathers
            ? collective::all_gather(*communicator.gathers, layout, shards, lease->slot,
                                     communicator.schedule_for(layout.shard), std::move(call))
            : collective::all_gather(*communicator.team, layout, shards, lease->slot,
                                     std::move(call));
    lease_ = std::move(lease);
    // Not FSDP2's output: it holds this, which holds the work.
    work_ = c10::make_intrusive<TideWork>(rank_, c10d::OpType::_ALLGATHER_BASE, std::move(pending),
                                          std::vector<at::Tensor>{}, std::move(traced));
    inputs_.clear();
    return work_;
  }

  // Coalesced: the group's own backend moves each parameter straight to its place.
  coalesced_ = at::empty({static_cast<int64_t>(layout.slot + layout::kAlignment)},
                         at::TensorOptions().dtype(at::kByte).device(plan_->shape.device));
  const auto start = reinterpret_cast<uintptr_t>(coalesced_.data_ptr());
  landing_ = reinterpret_cast<std::byte*>(layout::align_up(start));
  lease_ = std::make_shared<at::Tensor>(coalesced_);
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> inputs;
  for (size_t p = 0; p < layout.pieces.size(); ++p) {
    if (layout.pieces[p].shard == 0) continue;
    const int64_t offset = reinterpret_cast<uintptr_t>(part(p)) - start;
    const int64_t bytes = layout.pieces[p].shard * layout.world;
    use_on_current_stream(inputs_[p]);
    outputs.push_back(coalesced_.narrow(0, offset, bytes).view(plan_->shape.dtype));
    inputs.push_back(inputs_[p]);
  }
  traced_ = TracedCollective(moved);
  work_ = process_group->allgather_into_tensor_coalesced(outputs, inputs);
  inputs_.clear();
  return work_;
}

bool Gather::fits(const GatherPlan& plan, const std::vector<at::Tensor>& outs) {
  if (outs.size() != plan.layout.pieces.size()) return false;
  for (size_t p = 0; p < outs.size(); ++p) {
    const uint64_t bytes = plan.layout.pieces[p].shard * plan.layout.world;
    if (outs[p].storage_offset() != 0 || outs[p].storage().nbytes() != bytes ||
        !outs[p].storage().unsafeGetStorageImpl()->resizable())
      return false;
  }
  return true;
}

void Gather::exchange(const std::vector<at::Tensor>& outs) {
  wait_for_work();
  if (coalesced_.defined()) use_on_current_stream(coalesced_);
  for (size_t p = 0; p < outs.size(); ++p) {
    if (plan_->layout.pieces[p].shard == 0) continue;
    adopt(*outs[p].storage().unsafeGetStorageImpl(), part(p), lease_);
  }
  work_.reset();
  coalesced_.reset();
  lease_.reset();  // FSDP2's storages hold it from here
}

void Gather::materialize(const std::shared_ptr<Gather>& gather, const at::Tensor& output) {
  const at::NoGradGuard no_grad;
  const GatherPlan& plan = *gather->plan_;
  if (gather->work_) gather->wait_for_work();
  restore(*output.storage().unsafeGetStorageImpl());
  const at::Tensor flat =
      bytes_at(output.storage().data(), output.storage().nbytes(), plan.shape.device);
  for (size_t p = 0; p < plan.layout.pieces.size(); ++p) {
    const uint64_t bytes = plan.layout.pieces[p].shard;
    if (bytes == 0) continue;
    if (gather->work_) {
      for (int r = 0; r < plan.layout.world; ++r) {
        flat.narrow(0, plan.layout.rank_major(r, p), bytes)
            .copy_(bytes_at(gather->part(p) + r * bytes, bytes, plan.shape.device));
      }
    } else {
      use_on_current_stream(gather->inputs_[p]);
      flat.narrow(0, plan.layout.rank_major(gather->rank_, p), bytes)
          .copy_(gather->inputs_[p].view(at::kByte));
    }
  }
}

}  // namespace tide::shim
