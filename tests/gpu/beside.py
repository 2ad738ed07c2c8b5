"""What reduce-scatters cost the matrix products of rank 0 that run at the same time.

Every rank starts `count` reduce-scatters, one every `cadence` seconds or back to back, with at most
two under way; rank 0 keeps a queue of products on another stream meanwhile. NCCL's are bare
reduce_scatter_tensor() calls in a group with a given number of CTAs, Tide's are FSDP2's own
foreach_reduce() of a model of one parameter, gradients in bf16. `copies` moves, by plain device
copies, the bytes that Tide's reduce-scatter reads and writes: the part of the cost that is memory.
"""
import functools
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from reduction import Reduction

UNDER_WAY = 2
COLUMNS = 1024


class Products:
    """Keeps batches of one product queued on a stream of its own."""

    SHAPES = {  # m, n, k, and how many make about a millisecond
        "256x8192x8192": (256, 8192, 8192, 20),
        "2048x2048x2048": (2048, 2048, 2048, 40),  # 24 MiB: stays in the second-level cache
    }
    QUEUED = 3

    def __init__(self, name):
        m, n, k, self.batch = self.SHAPES[name]
        self.a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        self.b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        self.stream = torch.cuda.Stream()
        self.done, self.waiting = 0, []

    def top_up(self):
        self.waiting = [event for event in self.waiting if not event.query()]
        with torch.cuda.stream(self.stream):
            while len(self.waiting) < self.QUEUED:
                for _ in range(self.batch):
                    torch.mm(self.a, self.b, out=self.out)
                self.waiting.append(self.stream.record_event())
                self.done += self.batch

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event


@functools.cache
def host_group():
    """To meet without a kernel that waits on the GPU."""
    return dist.new_group(backend="gloo")


@functools.cache
def nccl_group(ctas):
    options = dist.ProcessGroupNCCL.Options()
    options.config.min_ctas = options.config.max_ctas = ctas
    return dist.new_group(list(range(dist.get_world_size())), backend="nccl", pg_options=options)


class Nccl:
    def __init__(self, world, elements, ctas):
        self.stream = torch.cuda.Stream()
        self.group = nccl_group(ctas)
        self.input = torch.zeros(world * elements, device="cuda")
        self.output = torch.empty(elements, device="cuda")

    def start(self):
        with torch.cuda.stream(self.stream):
            dist.reduce_scatter_tensor(self.output, self.input, group=self.group)


class Copies:
    def __init__(self, world, elements):
        self.stream = torch.cuda.Stream()
        pushed, summed = 2 * (world - 1) * elements * 2, world * elements * 2 + elements * 4
        self.to = torch.empty((pushed + summed) // 2, device="cuda", dtype=torch.uint8)
        self.source = torch.zeros_like(self.to)

    def start(self):
        with torch.cuda.stream(self.stream):
            self.to.copy_(self.source)


class One(nn.Module):
    """One matrix; its gradient costs one pass."""

    def __init__(self, rows):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, COLUMNS, device="cuda"))

    def forward(self, x):
        return (self.weight * x).sum()


class Fsdp:
    """FSDP2's own, of a model of one parameter."""

    def __init__(self, job, world, elements):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = fully_shard(One(world * elements // COLUMNS), mesh=job.mesh, mp_policy=policy)
        self.reduction = Reduction(model,
                                   torch.ones(COLUMNS, device="cuda", dtype=torch.bfloat16))
        self.caller = torch.cuda.Stream()
        self.results = []
        torch.cuda.synchronize()
        self.stream = self.reduction.stream

    def start(self):
        with torch.cuda.stream(self.caller):
            self.results = [*self.results[1 - UNDER_WAY:], self.reduction.start()]


def beside(job):
    """task: product (a name, or none), side (alone, copies, nccl, tide), elements (fp32 of the
    output), ctas, cadence (seconds; 0: back to back), count."""
    task = job.task
    torch.cuda.empty_cache()
    make = {"alone": lambda: None,
            "nccl": lambda: Nccl(job.world, task["elements"], task["ctas"]),
            "copies": lambda: Copies(job.world, task["elements"]),
            "tide": lambda: Fsdp(job, job.world, task["elements"])}[task["side"]]
    work = make()
    products = Products(task["product"]) if task["product"] and job.rank == 0 else None
    for _ in range(2 if work else 0):
        work.start()
    if products:
        products.top_up()
    torch.cuda.synchronize()
    dist.barrier(host_group())

    products_begin = products.mark() if products else None
    if products:
        products.done = 0
        products.waiting = []
    times, under_way = [], []
    count = task["count"] if work else 0
    begin = time.perf_counter()
    while len(times) < count or under_way or (
            products and time.perf_counter() - begin < task.get("seconds", 0)):
        if products:
            products.top_up()
        under_way = [end for end in under_way if not end.query()]
        if (len(times) < count and len(under_way) < UNDER_WAY
                and time.perf_counter() - begin >= len(times) * task["cadence"]):
            # What was queued before on this stream ends before `first` is reached.
            first, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record(work.stream)
            work.start()
            end.record(work.stream)
            times.append((first, end))
            under_way.append(end)
    elapsed = time.perf_counter() - begin
    if products:
        products_end = products.mark()
        torch.cuda.synchronize()
        job.notes.update(products=products.done,
                         products_ms=products_begin.elapsed_time(products_end))
    torch.cuda.synchronize()
    job.notes.update(elapsed=elapsed,
                     own_ms=[first.elapsed_time(end) for first, end in times])
    dist.barrier(host_group())
