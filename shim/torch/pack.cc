#include "shim/torch/pack.h"

#include <ATen/ops/_chunk_cat.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/from_blob.h>

#include <optional>

#include "shim/collective/node_reduce_scatter.h"
#include "shim/collective/reduce_scatter.h"
#include "shim/torch/accelerator.h"
#include "shim/torch/storage.h"
#include "shim/torch/work.h"

namespace tide::shim {
namespace {

device::DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return device::DType::kFloat32;
    case at::kBFloat16:
      return device::DType::kBFloat16;
    case at::kHalf:
      return device::DType::kFloat16;
    default:
      TORCH_INTERNAL_ASSERT(false, "a reduce-scatter of ", type, " was planned");
  }
}

// The same tensors, contiguous, in memory of the slot; the last of them gives it back.
std::vector<at::Tensor> copied_into(const std::shared_ptr<Lease>& slot,
                                    const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> copies;
  uint64_t offset = 0;
  for (const at::Tensor& gradient : gradients) {
    copies.push_back(at::from_blob(
        slot->slot.data + offset, gradient.sizes(), [slot](void*) {}, gradient.options()));
    offset += layout::align_up(gradient.nbytes());
  }
  at::_foreach_copy_(copies, gradients);
  return copies;
}

}  // namespace

uint64_t Pack::slot_bytes(const std::vector<at::Tensor>& gradients) {
  uint64_t bytes = 0;
  for (const at::Tensor& gradient : gradients) bytes += layout::align_up(gradient.nbytes());
  return bytes;
}

Pack::Pack(std::shared_ptr<Group> group, std::shared_ptr<ReducePlan> plan,
           std::vector<at::Tensor> gradients, uint64_t sequence, std::shared_ptr<Lease> slot)
    : group_(std::move(group)),
      plan_(std::move(plan)),
      gradients_(std::move(gradients)),
      sequence_(sequence),
      in_slot_(slot != nullptr) {
  if (in_slot_) {
    gradients_ = copied_into(slot, gradients_);
    return;
  }
  // A gradient that autograd left in another order is put in order here, on the stream that made
  // it, by this rank alone: going stock would need all ranks to agree.
  for (at::Tensor& gradient : gradients_) gradient = gradient.contiguous();
}

c10::intrusive_ptr<c10d::Work> Pack::start(const Communicator& communicator, int rank, float factor,
                                           std::chrono::milliseconds timeout,
                                           const at::Tensor& output) {
  auto gradients = std::make_shared<std::vector<at::Tensor>>(std::move(gradients_));
  // On a GPU the sum has only been enqueued when the caller goes on. FSDP2 drops its pack, and this
  // with it, after the compute stream has waited for the reduce-scatter: then they may be reused.
  // A slot is given back as soon as the reduce-scatter's stream has waited: the next all-gather,
  // which may land in it, is ordered behind that.
  if (!plan_->shape.device.is_cpu() && !in_slot_) held_ = gradients;
  std::vector<const void*> addresses;
  uint64_t bytes = 0;
  for (const at::Tensor& gradient : *gradients) {
    addresses.push_back(gradient.const_data_ptr());
    bytes += gradient.nbytes();
  }
  const collective::ReduceArguments arguments{.gradients = addresses,
                                              .in = dtype_of(plan_->shape.in),
                                              .output = output.mutable_data_ptr(),
                                              .out = dtype_of(plan_->shape.out),
                                              .factor = factor};
  // Between nodes the work goes on when its Work is dropped, and writes the output at its end.
  std::shared_ptr<void> keep = gradients;
  if (communicator.reductions)
    keep = std::make_shared<std::pair<decltype(gradients), at::Tensor>>(gradients, output);
  collective::Call call{
      .what = "reduce-scatter of " + group_->label, .timeout = timeout, .keep = std::move(keep)};
  const MoveFacts moved = facts(Move::kReduceScatter, bytes);
  const bool seen = plan_->shape.device.is_cpu();  // when it is complete
  TracedCollective traced = seen ? TracedCollective(moved) : TracedCollective();
  std::optional<TracedMove> enqueued;
  if (!seen) enqueued.emplace(moved);
  auto pending = communicator.reductions
                     ? collective::reduce_scatter(*communicator.reductions, plan_->layout,
                                                  arguments, std::move(call))
                     : collective::reduce_scatter(communicator.team, plan_->layout, arguments,
                                                  std::move(call));
  return c10::make_intrusive<TideWork>(rank, c10d::OpType::_REDUCE_SCATTER_BASE, std::move(pending),
                                       std::vector<at::Tensor>{output}, std::move(traced));
}

void Pack::materialize(const std::shared_ptr<Pack>& pack, const at::Tensor& packed) {
  const at::NoGradGuard no_grad;
  restore(*packed.storage().unsafeGetStorageImpl());
  for (const at::Tensor& gradient : pack->gradients_) use_on_current_stream(gradient);
  at::Tensor rows = packed.view({pack->plan_->shape.world, -1});
  at::_chunk_cat_out(rows, pack->gradients_, 0, pack->plan_->shape.world);
}

}  // namespace tide::shim
