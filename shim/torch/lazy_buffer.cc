#include "shim/torch/lazy_buffer.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "shim/torch/accelerator.h"
#include "shim/torch/group.h"
#include "shim/torch/hooks.h"
#include "shim/torch/log.h"
#include "shim/torch/python.h"
#include "shim/torch/storage.h"

namespace tide::shim {
namespace {

class Lazy : public Stripped {};

// The allocation stays FSDP2's own while torch compiles, and under a dispatch mode: it would see
// an operator that it does not know.
constexpr char kReplacement[] = R"(
import torch
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as fsdp

def lazy(allocate_now, gathers):
    make = torch.ops.tide.lazy_buffer.default
    compiling, modes = torch.compiler.is_compiling, torch._C._len_torch_dispatch_stack

    def allocate(self, size, *, dtype, device):
        buffer = None
        if not compiling() and modes() == 0 and len(size) == 1:
            buffer = make(gathers, size[0], dtype, device)
        return allocate_now(self, size, dtype=dtype, device=device) if buffer is None else buffer

    return allocate

gather, reduce = fsdp.DefaultAllGather, fsdp.DefaultReduceScatter
gather.allocate, reduce.allocate = lazy(gather.allocate, True), lazy(reduce.allocate, False)
)";

struct Buffer {
  uint64_t bytes;
  at::ScalarType dtype;
  at::Device device;
  bool operator==(const Buffer&) const = default;
};

Buffer buffer_of(const GatherPlan& plan) {
  return {plan.layout.shard * plan.layout.world, plan.shape.dtype, plan.shape.device};
}

Buffer buffer_of(const ReducePlan& plan) {
  return {plan.layout.out * plan.layout.world * c10::elementSize(plan.shape.out), plan.shape.out,
          plan.shape.device};
}

template <typename P>
bool expected(const std::vector<std::shared_ptr<P>>& plans, const Buffer& buffer) {
  return std::ranges::any_of(plans, [&](const auto& plan) {
    return plan->state == PlanState::kActive && buffer_of(*plan) == buffer;
  });
}

// Nothing: FSDP2 is to allocate this one itself.
std::optional<at::Tensor> lazy_buffer(bool gathers, int64_t elements, at::ScalarType dtype,
                                      at::Device device) {
  if (forked() || elements <= 0 || !movable(device) || capturing(device)) return std::nullopt;
  const Caller caller = find_caller(gathers ? FsdpFunction::kAllGather : FsdpFunction::kReduce);
  if (caller.group < 0 || !caller.custom.empty()) return std::nullopt;
  const Buffer wanted{elements * c10::elementSize(dtype), dtype, device};
  {
    const std::lock_guard lock(groups().mutex);
    const std::shared_ptr<Group> group = groups().find(caller);
    if (!(gathers ? expected(group->gathers, wanted) : expected(group->reduces, wanted)))
      return std::nullopt;
  }
  const at::Tensor buffer = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
  c10::StorageImpl& storage = *buffer.storage().unsafeGetStorageImpl();
  strip(storage, std::make_shared<Lazy>(),
        "this buffer of FSDP2 has no memory: Tide was about to do without it; "
        "TIDE_ALL_GATHER=stock and TIDE_REDUCE_SCATTER=stock turn that off");
  storage.set_nbytes(wanted.bytes);
  buffer.unsafeGetTensorImpl()->set_sizes_contiguous({elements});
  return buffer;
}

}  // namespace

void register_lazy_buffers() {
  static auto& library =
      *new torch::Library(torch::Library::FRAGMENT, "tide", std::nullopt, __FILE__, __LINE__);
  library.def(
      "lazy_buffer(bool gathers, int elements, ScalarType dtype, Device device) -> Tensor?");
  library.impl("lazy_buffer",
               torch::dispatch(c10::DispatchKey::BackendSelect, TORCH_FN(lazy_buffer)));
}

void make_buffers_lazy() {
  static std::atomic<bool> asked{false};
  if (asked.exchange(true)) return;
  if (const std::string error = run_python(kReplacement); !error.empty())
    log(LogLevel::kInfo, "FSDP2 goes on allocating what Tide does without: " + error);
}

void give_memory(const at::Tensor& buffer) {
  if (!buffer.defined() || !buffer.has_storage()) return;
  if (stripped_as<Lazy>(buffer)) restore(*buffer.storage().unsafeGetStorageImpl());
}

}  // namespace tide::shim
