"""What reduce-scatters cost the matrix products of rank 0 that run at the same time.

A window: every rank fills a stream with reduce-scatters, each held back by a word of host memory that
is written when it is due, every `cadence` seconds or all at once; rank 0 keeps another stream filled
with products, a mark after each few, from before the first of them until after the last. What products
take while no reduce-scatter runs is their own time; what they take longer is lost. NCCL's are bare
reduce_scatter_tensor() calls in a group with a given number of CTAs, Tide's are FSDP2's own
foreach_reduce() of a model of one parameter, gradients in bf16. `copies` moves, by plain device
copies, the bytes that Tide's reduce-scatter reads and writes: the part of the cost that is memory.
"""
import ctypes
import functools
import statistics
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from reduction import Reduction

COLUMNS = 1024
PRODUCTS_A_MARK = 8
MARKS_AHEAD = 24  # of the product that runs
WARM_MS = 4       # of a window, which count for nothing
LEAD_SECONDS, TAIL_SECONDS = 0.012, 0.008  # before the first reduce-scatter and behind the last
REDUCTIONS_SECONDS, MOST_REDUCTIONS = 0.06, 8  # of a window, about
HELD_SECONDS = 5  # at most: then what should have been enqueued waits for the device
TRIES = 4         # of a window
STREAMS = 8       # that are tried


class Products:
    """Of one shape, on a stream of their own."""

    SHAPES = {  # m, n, k
        "256x8192x8192": (256, 8192, 8192),
        "2048x2048x2048": (2048, 2048, 2048),  # 24 MiB: stays in the second-level cache
    }

    def __init__(self, name):
        m, n, k = self.SHAPES[name]
        self.a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        self.b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        self.stream = torch.cuda.Stream()
        self.queue()  # loads what it takes, which would wait for streams that are held

    def queue(self):
        """A few of them; the event behind."""
        with torch.cuda.stream(self.stream):
            for _ in range(PRODUCTS_A_MARK):
                torch.mm(self.a, self.b, out=self.out)
            return mark(self.stream)


def mark(stream):
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


class Gate:
    """A counter in host memory that streams wait for: no kernel rests on the GPU meanwhile."""

    def __init__(self):
        self.memory = torch.zeros(1, dtype=torch.int32).pin_memory()
        self.word = ctypes.c_int32.from_address(self.memory.data_ptr())
        self.wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
        self.wait.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
        self.opened = 0

    def hold(self, stream, ticks):
        """`stream` goes on when the counter has grown by so many."""
        at_least = 0  # CU_STREAM_WAIT_VALUE_GEQ
        error = self.wait(stream.cuda_stream, self.memory.data_ptr(), self.opened + ticks, at_least)
        if error:
            raise RuntimeError(f"cuStreamWaitValue32 failed with {error}")

    def open(self, ticks=1):
        self.opened += ticks
        self.word.value = self.opened


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
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            dist.reduce_scatter_tensor(self.output, self.input, group=self.group)


class Copies:
    def __init__(self, world, elements):
        self.stream = torch.cuda.Stream()
        pushed, summed = 2 * (world - 1) * elements * 2, world * elements * 2 + elements * 4
        self.to = torch.empty((pushed + summed) // 2, device="cuda", dtype=torch.uint8)
        self.source = torch.zeros_like(self.to)

    def start(self):
        self.stream.wait_stream(torch.cuda.current_stream())
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
        torch.cuda.synchronize()
        self.stream = self.reduction.stream

    def start(self):
        return self.reduction.start()


def agreed(number):
    """The largest of all ranks' numbers."""
    all_of_them = torch.tensor([number])
    dist.all_reduce(all_of_them, op=dist.ReduceOp.MAX, group=host_group())
    return int(all_of_them)


class Late(Exception):
    """A window that shows nothing: the host did not keep up."""


class Windows:
    def __init__(self, work, products):
        self.work, self.products = work, products
        self.caller, self.gate = torch.cuda.Stream(), Gate()
        for _ in range(STREAMS):
            if self.products_run_beside():
                return
            if self.products:
                self.products.stream = torch.cuda.Stream()
        raise RuntimeError("products wait for reduce-scatters on every stream")

    def products_run_beside(self):
        """Streams that share a channel to the GPU wait for each other; which do is up to the driver."""
        with torch.cuda.stream(self.caller):
            self.gate.hold(self.caller, 1)
            kept = self.work.start()
        end = self.products.queue() if self.products else None
        deadline = time.monotonic() + 0.1
        while end and not end.query() and time.monotonic() < deadline:
            pass
        beside = not end or end.query()
        self.gate.open()
        torch.cuda.synchronize()
        del kept
        return not agreed(not beside)

    def run(self, reductions, cadence=0):
        """What window() returns."""
        for _ in range(TRIES):
            late, found = 0, None
            try:
                found = self.window(reductions, cadence)
            except Late:
                late = 1
            torch.cuda.synchronize()
            if not agreed(late):
                return found
        raise RuntimeError(f"the host was too slow for a window, {TRIES} times")

    def window(self, reductions, cadence):
        """Milliseconds of a reduce-scatter: median, or back to back of all by their number; and on the
        rank with products the microseconds of one alone, the milliseconds that all of them lost, and
        those in which they did."""
        torch.cuda.synchronize()
        # The first tick starts the products, the others a reduce-scatter each.
        due = [0.0] + [LEAD_SECONDS + (i + 0.5) * cadence for i in range(reductions)]
        helped = threading.Event()

        def help_out():
            helped.set()
            self.gate.word.value = self.gate.opened + len(due)

        helper = threading.Timer(HELD_SECONDS, help_out)
        helper.start()
        try:
            kept, times = [], []
            with torch.cuda.stream(self.caller):
                for i in range(reductions):
                    self.gate.hold(self.caller, 2 + i)
                    first = mark(self.caller)
                    kept.append(self.work.start())
                    times.append((first, mark(self.work.stream)))
            marks = []
            if self.products:
                self.gate.hold(self.products.stream, 1)
                marks.append(mark(self.products.stream))
                marks += [self.products.queue() for _ in range(MARKS_AHEAD)]
        finally:
            helper.cancel()
            helper.join()
        late, ended = helped.is_set(), None
        dist.barrier(host_group())
        begin = time.monotonic()
        while True:
            now = time.monotonic() - begin
            while due and due[0] <= now:
                due.pop(0)
                self.gate.open()
            if ended is None and not due and times[-1][1].query():
                ended = now
            if ended is not None and (not self.products or now > ended + TAIL_SECONDS):
                break
            if self.products and marks[-MARKS_AHEAD].query():
                late = late or marks[-1].query()  # there was nothing left to run
                marks.append(self.products.queue())
        torch.cuda.synchronize()
        if late:
            raise Late
        own = (statistics.median(a.elapsed_time(b) for a, b in times) if cadence else
               times[0][0].elapsed_time(times[-1][1]) / reductions)
        if not self.products:
            return own, 0, 0, 0
        spans = [(marks[0].elapsed_time(a), marks[0].elapsed_time(b)) for a, b in times]
        return own, *losses([marks[0].elapsed_time(m) for m in marks], spans,
                            reductions * cadence * 1e3)


def losses(marks, spans, least):
    """marks: milliseconds at which so many products each had ended; spans: when reduce-scatters ran.
    Returns what window() says of products, over `least` milliseconds or longer."""
    during, quiet = [], []
    for begin, end in zip(marks, marks[1:]):
        beside = any(begin < b and a < end for a, b in spans)
        if begin >= WARM_MS or beside:
            (during if beside else quiet).append(end - begin)
    alone = statistics.median(quiet)
    lost = sum(during) - len(during) * alone
    return alone / PRODUCTS_A_MARK * 1e3, lost, max(least, spans[-1][1] - spans[0][0])


def beside(job):
    """task: product (a name), side (copies, nccl, tide), elements (fp32 of the output), ctas,
    cadence (seconds; 0: back to back), rounds. Notes of rank 0: alone_us, of a product; slower, by
    what part the products of a window are; lost_us, by each reduce-scatter; own_ms."""
    task = job.task
    torch.cuda.empty_cache()
    work = {"nccl": lambda: Nccl(job.world, task["elements"], task["ctas"]),
            "copies": lambda: Copies(job.world, task["elements"]),
            "tide": lambda: Fsdp(job, job.world, task["elements"])}[task["side"]]()
    products = Products(task["product"]) if job.rank == 0 else None
    kept = [work.start() for _ in range(MOST_REDUCTIONS)]  # allocates what a window takes
    torch.cuda.synchronize()
    dist.barrier(host_group())
    del kept
    windows = Windows(work, products)
    cadence = task["cadence"]
    each = agreed(max(cadence * 1e6, windows.run(2)[0] * 1e3)) / 1e6
    reductions = int(min(MOST_REDUCTIONS, max(2, REDUCTIONS_SECONDS / each)))
    rounds = [windows.run(reductions, cadence) for _ in range(task["rounds"])]
    if products:
        own, alone, lost, spanned = zip(*rounds)
        slower = [part / (whole - part) for part, whole in zip(lost, spanned)]
        job.notes.update(alone_us=statistics.median(alone), slower=statistics.median(slower),
                         slower_all=slower, lost_us=statistics.median(lost) / reductions * 1e3,
                         own_ms=statistics.median(own), reductions=reductions)
    dist.barrier(host_group())
