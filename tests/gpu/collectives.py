"""One group's all-gather and reduce-scatter: FSDP2's own calls and bare ones, in turn.

FSDP2's are unshard() and foreach_reduce() of a model of one group, layout copies included: what a
job calls, stock or with Tide. Bare ones are the group's collectives on flat buffers: of the same
bytes (bf16), and for the reduce-scatter also as stock FSDP2 makes it, in fp32. Each is timed two
ways: from the call to the end, one at a time, and on the device alone, several queued while the GPU
is kept busy, so that the time of the calling thread does not count.
"""
import contextlib
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import symmetric
from job import DEVICE
from models import BF16
from reduction import Reduction
from settle import empty, synchronize

CUDA = DEVICE == "cuda"
COLUMNS = 1024
MATRICES = 8
CYCLES = 2e9  # of a GPU in a second, at most


class Weights(nn.Module):
    """`size` bytes of bf16 in equal matrices; the gradient costs one pass over them."""

    def __init__(self, size, device):
        super().__init__()
        rows, rest = divmod(size, 2 * COLUMNS * MATRICES)
        if rest or not rows:
            raise ValueError(f"{size} bytes are not {MATRICES} bf16 matrices of {COLUMNS} columns")
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(rows, COLUMNS, device=device, dtype=torch.bfloat16))
            for _ in range(MATRICES))

    def forward(self, x):
        return sum((w * x).sum() for w in self.weights)


class Clock:
    """Times calls that all ranks make together. A call leaves what it started in the order of the
    current stream."""

    def __init__(self, group, device):
        self.group = group
        self.token = torch.zeros(1, device=device)
        self.host_bound = False  # a calling thread was slower than the time it had

    def meet(self):
        dist.all_reduce(self.token, group=self.group)

    def called(self, call):
        """Seconds from the call to its end."""
        self.meet()
        synchronize()
        begin = time.perf_counter()
        call()
        synchronize()
        return time.perf_counter() - begin

    def on_device(self, call, count):
        """Seconds of one of `count` calls in a row, on the GPU; on the CPU like called()."""
        if not CUDA:
            return statistics.median(self.called(call) for _ in range(count))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # What queueing takes, with nothing on the GPU to wait for.
        self.meet()
        synchronize()
        queued = time.perf_counter()
        for _ in range(count):
            call()
        queued = time.perf_counter() - queued
        synchronize()
        torch.cuda._sleep(int((2 * queued + 2e-3) * CYCLES))
        self.meet()  # so that all GPUs begin at once
        begin.record()
        for _ in range(count):
            call()
        end.record()
        self.host_bound |= begin.query()
        synchronize()
        return begin.elapsed_time(end) * 1e-3 / count


def fsdp_calls(job, group):
    """FSDP2's two calls, by collective."""
    model = fully_shard(Weights(job.task["size"], job.device), mesh=job.mesh, mp_policy=BF16,
                        reshard_after_forward=True)
    if job.task.get("symmetric"):
        job.notes["symmetric"] = symmetric.use(model, group)
    reduction = Reduction(model, torch.ones(COLUMNS, device=job.device, dtype=torch.bfloat16))

    def gather():
        model.unshard()
        model.reshard()

    def reduce():
        result = reduction.start()
        if CUDA:
            torch.cuda.current_stream().wait_stream(reduction.stream)
        del result

    return {"all_gather": gather, "reduce_scatter": reduce}


def bare_calls(job, group):
    """By collective and name."""
    each = job.task["size"] // 2 // job.world  # elements of a rank

    def zeros(elements, dtype):
        if job.task.get("symmetric"):
            return symmetric.zeros(elements, dtype, group)
        return torch.zeros(elements, device=job.device, dtype=dtype)

    def reduce(dtype):
        output, pack = zeros(each, dtype), zeros(each * job.world, dtype)
        return lambda: dist.reduce_scatter_tensor(output, pack, group=group)

    whole = zeros(each * job.world, torch.bfloat16)
    part = whole.chunk(job.world)[job.rank]
    return {"all_gather": {"bare": lambda: dist.all_gather_into_tensor(whole, part, group=group)},
            "reduce_scatter": {"bare": reduce(torch.bfloat16), "bare_fp32": reduce(torch.float32)}}


def collectives(job):
    """task: size (bytes of the whole group in bf16), rounds, count (calls queued in a row),
    symmetric (no): in symmetric memory.

    Notes: {collective: {"fsdp" | "bare" | "bare_fp32": {"device": [seconds], "called": [seconds]}}}
    """
    empty()
    # Not the default stream, on which copies in batches, as NCCL makes them in symmetric memory, are
    # an error.
    with torch.cuda.stream(torch.cuda.Stream()) if CUDA else contextlib.nullcontext():
        measure(job)


def measure(job):
    group = job.mesh.get_group()
    clock = Clock(group, job.device)
    fsdp, bare = fsdp_calls(job, group), bare_calls(job, group)
    for collective, calls in bare.items():
        calls = {"fsdp": fsdp[collective], **calls}
        times = {name: {"device": [], "called": []} for name in calls}
        for call in calls.values():
            for _ in range(2):
                call()
        for _ in range(job.task["rounds"]):
            for name, call in calls.items():
                times[name]["device"].append(clock.on_device(call, job.task["count"]))
                times[name]["called"].append(clock.called(call))
        job.notes[collective] = times
    job.notes["host_bound"] = clock.host_bound
