"""Stock FSDP2 whose buffers are NCCL's symmetric memory, the nearest that stock has to Tide.

Where FSDPModule has set_symm_mem_for_comm() (torch 2.13, not 2.11) that is called; else the same is
made of the interface for custom communication. With NCCL_CTA_POLICY=2, copy engines make the
all-gathers (NCCL 2.28 on). Reduce-scatters must be sums: FSDP2 divides afterwards.

NVLink multicast stays off: where the environment does not say so, this refuses.
"""
import os

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch.distributed.fsdp import FSDPModule

REQUIRED = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}


class Buffers:
    def allocate(self, size, *, dtype, device):
        with torch.cuda.use_mem_pool(symm_mem.get_mem_pool(device)):
            return torch.empty(size, dtype=dtype, device=device)


class AllGather(Buffers):
    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        symm_mem.rendezvous(output_tensor, group=group.group_name)  # the input is a part of it
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group,
                                           async_op=async_op)


class ReduceScatter(Buffers):
    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        for tensor in (input_tensor, output_tensor):
            symm_mem.rendezvous(tensor, group=group.group_name)
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group,
                                          async_op=async_op)


def require():
    """Raises where symmetric memory cannot be, or must not."""
    wrong = [f"{name}={value}" for name, value in REQUIRED.items() if os.environ.get(name) != value]
    if wrong:
        raise RuntimeError(f"symmetric memory only without NVLink multicast: set {' '.join(wrong)}")
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        raise RuntimeError("symmetric memory is NCCL's: this torch sees no GPU, or has no NCCL")


def zeros(elements, dtype, group):
    """A tensor that the ranks of `group`, all of which call this, have in symmetric memory."""
    require()
    symm_mem.set_backend("NCCL")
    device = torch.device("cuda", torch.cuda.current_device())
    tensor = Buffers().allocate((elements,), dtype=dtype, device=device).zero_()
    symm_mem.rendezvous(tensor, group=group.group_name)
    return tensor


def use(model, group):
    """All FSDP2 groups of `model`, which communicate through `group`, from now on. Returns how."""
    require()
    own = hasattr(FSDPModule, "set_symm_mem_for_comm")
    if not own:
        symm_mem.set_backend("NCCL")
    dist.barrier(group=group)  # the rendezvous needs a communicator
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        module.set_force_sum_reduction_for_comms(True)
        if own:
            module.set_symm_mem_for_comm()
        else:
            module.set_custom_all_gather(AllGather())
            module.set_custom_reduce_scatter(ReduceScatter())
    return "set_symm_mem_for_comm" if own else "custom communication in symmetric memory"
