// Casts, which FSDP2 makes outside its five operators: from the fp32 shards into one flat buffer
// before copy-in (_foreach_copy_), and from the reduce dtype after a reduce-scatter (copy_).
// Hooked only in TIDE_SHIM=observe.
#include <torch/library.h>

#include "shim/torch/accelerator.h"
#include "shim/torch/hooks.h"
#include "shim/torch/observe.h"

namespace tide::shim {
namespace {

// The last foreach copy of this thread: a cast of FSDP2's if the next copy-in reads what it wrote.
struct LastCopy {
  const c10::StorageImpl* written = nullptr;  // compared, never read
  uint64_t bytes = 0;
  double seconds = 0;
};
thread_local LastCopy last_copy;
thread_local const c10::StorageImpl* last_reduced = nullptr;  // likewise

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// aten::_foreach_copy_(Tensor(a!)[] self, Tensor[] src, bool non_blocking=False) -> ()
void foreach_copy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const std::vector<at::Tensor> written = (*stack)[stack->size() - 3].toTensorVector();
  LastCopy copy;
  for (const at::Tensor& tensor : written) copy.bytes += tensor.nbytes();
  copy.written = written.empty() ? nullptr : storage_of(written[0]);
  const auto begin = std::chrono::steady_clock::now();
  stock(op, keys, stack);
  copy.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  last_copy = copy;
}

// aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)
// (Tensor.to ends here; its own operator has a kernel at this key already.)
void copy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const at::Tensor source = (*stack)[stack->size() - 2].toTensor();
  if (last_reduced == nullptr || storage_of(source) != last_reduced) return stock(op, keys, stack);
  last_reduced = nullptr;
  const Timed timed(config(), Phase::kCast, (*stack)[stack->size() - 3].toTensor().nbytes(),
                    source.device());
  stock(op, keys, stack);
}

}  // namespace

void register_observe_hooks() {
  auto& aten = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect,
                                   __FILE__, __LINE__);
  aten.impl("_foreach_copy_", torch::CppFunction::makeFromBoxedFunction<&foreach_copy>());
  aten.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&copy>());
}

void note_gathered(const std::vector<at::Tensor>& inputs) {
  if (!inputs.empty() && last_copy.written != nullptr && storage_of(inputs[0]) == last_copy.written)
    add_cost(Phase::kCast, last_copy.bytes, last_copy.seconds);
  last_copy = {};
}

void note_reduced(const at::Tensor& output) { last_reduced = storage_of(output); }

}  // namespace tide::shim
