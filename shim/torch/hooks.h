// The five operators through which FSDP2's collectives pass, hooked at BackendSelect: one
// registration covers every device, training, no_grad and inference_mode.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <functional>
#include <string>

#include "shim/torch/communicator.h"
#include "shim/torch/config.h"

namespace tide::shim {

// Registers the kernels; they stay for the life of the process.
void register_hooks(const Config& config);

// Instead: FSDP2's all-gathers throw `error`.
void register_refusal(const std::string& error);

// The configuration that was given to register_hooks.
const Config& config();

using Stack = torch::jit::Stack;

// Runs what would have run without Tide.
void stock(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

// True in a child forked from a rank that had met others: it has no team threads and must leave its
// parent's slots alone.
bool forked();

// Whether Tide moves tensors of `device`: this build can, and TIDE_CUDA allows it.
bool movable(at::Device device);
// A tensor whose bytes Tide may move: dense, with memory, on such a device.
bool plain(const at::Tensor& tensor);
bool all_plain(const std::vector<at::Tensor>& tensors);

// From TIDE_TIMEOUT, else from the call (milliseconds, not positive: none), else the group's.
std::chrono::milliseconds deadline_of(const Communicator& communicator, int64_t milliseconds);

// Runs `start` and turns tide::Error into the error that c10d's own backends throw.
c10::intrusive_ptr<c10d::Work> started(
    const std::function<c10::intrusive_ptr<c10d::Work>()>& start);

// Waits for the Work that a stock collective returned, as FSDP2 does right after, so that its time
// can be measured. Null works are complete.
void wait_for(const c10::IValue& work);

// The kernels. Stack and results are those of the operators' schemas, torch 2.9 and later:
// fsdp::all_gather_copy_in(Tensor[] inputs, Tensor output, SymInt[] splits, SymInt numel,
//                          SymInt rank) -> (Tensor, Tensor)
void all_gather_copy_in(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);
// c10d::_allgather_base_(Tensor output, Tensor input, ProcessGroup group, bool async_op,
//                        int timeout) -> (Tensor, Work)
void all_gather_base(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);
// fsdp::split_with_sizes_copy(Tensor gathered, SymInt[] splits, int dim, *, Tensor(a!)[] out) -> ()
void all_gather_copy_out(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);
// fsdp::chunk_cat(Tensor[] gradients, int dim, int num_chunks, *, Tensor(a!) out) -> ()
void gradient_pack(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);
// c10d::_reduce_scatter_base_(Tensor output, Tensor input, ProcessGroup group, ReduceOp op,
//                             bool async_op, int timeout) -> (Tensor, Work)
void reduce_scatter_base(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

}  // namespace tide::shim
