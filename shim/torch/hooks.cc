#include "shim/torch/hooks.h"

#include <pthread.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>

#include "include/tide/error.h"
#include "shim/torch/accelerator.h"
#include "shim/torch/lazy_buffer.h"
#include "shim/torch/observe.h"

namespace tide::shim {
namespace {

Config& stored_config() {
  static auto& instance = *new Config;
  return instance;
}

std::atomic<bool> in_forked_child{false};
std::atomic<bool> parent_communicates{false};

std::string& refusal() {
  static auto& text = *new std::string;
  return text;
}

void refuse_to_gather(const c10::OperatorHandle&, c10::DispatchKeySet, Stack*) {
  TORCH_CHECK(false, refusal());
}

torch::Library& library(const char* name) {
  return *new torch::Library(torch::Library::IMPL, name, c10::DispatchKey::BackendSelect, __FILE__,
                             __LINE__);
}

}  // namespace

void register_hooks(const Config& given) {
  stored_config() = given;
  // Asked before the fork: the child must not take a lock that another thread held.
  pthread_atfork([] { parent_communicates = communicates(); }, nullptr,
                 [] { in_forked_child = in_forked_child || parent_communicates; });

  // FSDP2 defines its operators later, from Python: implementing them before is legal.
  torch::Library& fsdp = library("fsdp");
  fsdp.impl("all_gather_copy_in", torch::CppFunction::makeFromBoxedFunction<&all_gather_copy_in>());
  fsdp.impl("split_with_sizes_copy",
            torch::CppFunction::makeFromBoxedFunction<&all_gather_copy_out>());
  fsdp.impl("chunk_cat", torch::CppFunction::makeFromBoxedFunction<&gradient_pack>());
  torch::Library& c10d = library("c10d");
  c10d.impl("_allgather_base_", torch::CppFunction::makeFromBoxedFunction<&all_gather_base>());
  c10d.impl("_reduce_scatter_base_",
            torch::CppFunction::makeFromBoxedFunction<&reduce_scatter_base>());
  register_lazy_buffers();
  if (given.mode == Mode::kObserve) register_observe_hooks();
}

void register_refusal(const std::string& error) {
  refusal() = error;
  library("fsdp").impl("all_gather_copy_in",
                       torch::CppFunction::makeFromBoxedFunction<&refuse_to_gather>());
}

const Config& config() { return stored_config(); }

void stock(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect),
      stack);
}

bool forked() { return in_forked_child; }

bool movable(at::Device device) {
  return carries(device) && (device.is_cpu() || config().cuda != CudaChoice::kOff);
}

bool plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && movable(tensor.device()) &&
         tensor.has_storage() && !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

bool all_plain(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), plain);
}

std::chrono::milliseconds deadline_of(const Communicator& communicator, int64_t milliseconds) {
  if (config().timeout) return *config().timeout;
  return milliseconds > 0 ? std::chrono::milliseconds(milliseconds) : communicator.timeout;
}

c10::intrusive_ptr<c10d::Work> started(
    const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
  try {
    return start();
  } catch (const Error& error) {
    TORCH_CHECK_WITH(DistBackendError, false, error.what());
  }
}

void wait_for(const c10::IValue& work) {
  if (work.isNone()) return;
  const auto pointer = work.toCustomClass<c10d::Work>();
  if (pointer) pointer->wait();
}

}  // namespace tide::shim
