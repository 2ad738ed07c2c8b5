"""What reduce-scatters cost the matrix products of rank 0 that run at the same time.

A window: every rank fills its streams with reduce-scatters, one every `cadence` seconds of the GPU's
time or back to back, rank 0 another stream with products, all held back meanwhile; then they run
without the host. Windows with and without reduce-scatters alternate; both have the pauses that make
the cadence, which take an SM. NCCL's are bare reduce_scatter_tensor() calls in a group with a given
number of CTAs, Tide's are FSDP2's own foreach_reduce() of a model of one parameter, gradients in
bf16. `copies` moves, by plain device copies, the bytes that Tide's reduce-scatter reads and writes:
the part of the cost that is memory.
"""
import functools
import statistics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from reduction import Reduction

COLUMNS = 1024
HOLDS = (0.05, 0.1, 0.2, 0.4)  # seconds in which a window is filled, one after the other
MOST_QUEUED = 900  # launches of a stream: the driver blocks beyond about a thousand


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

    def queue(self, count):
        """The events before the first and behind the last."""
        with torch.cuda.stream(self.stream):
            begin = mark(self.stream)
            for _ in range(count):
                torch.mm(self.a, self.b, out=self.out)
            return begin, mark(self.stream)


def mark(stream):
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


@functools.cache
def cycles_of_a_second():
    """Of torch.cuda._sleep()."""
    cycles = 20_000_000
    torch.cuda._sleep(cycles)
    begin = mark(torch.cuda.current_stream())
    torch.cuda._sleep(cycles)
    end = mark(torch.cuda.current_stream())
    end.synchronize()
    return cycles / begin.elapsed_time(end) * 1e3


def rest(seconds):
    """The current stream does nothing for so long, on one SM."""
    torch.cuda._sleep(int(seconds * cycles_of_a_second()))


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


class Windows:
    def __init__(self, job, work, products):
        self.job, self.work, self.products = job, work, products
        self.caller, self.holder = torch.cuda.Stream(), torch.cuda.Stream()

    def run(self, reductions, cadence, products, bare=False):
        """Milliseconds of the products and of each reduce-scatter (back to back: of all by their
        number), and whether the products lasted longest. Every rank's window is held as long, again
        where a host was too slow to fill one in time. bare: the pauses between reduce-scatters
        without these."""
        for hold in HOLDS:
            found, late = self.window(hold, reductions, cadence, products, bare)
            if not agreed(late):
                return found
        raise RuntimeError(f"a host needed more than {HOLDS[-1]} s to fill a window of {products} "
                           f"products and {reductions} reduce-scatters")

    def window(self, hold, reductions, cadence, products, bare):
        torch.cuda.synchronize()
        dist.barrier(host_group())
        with torch.cuda.stream(self.holder):
            rest(hold)
        held = self.holder.record_event()
        kept, times = [], []
        self.caller.wait_event(held)
        if products:
            self.products.stream.wait_event(held)
            begin, end = self.products.queue(products)
        with torch.cuda.stream(self.caller):
            for _ in range(reductions):
                if cadence:
                    rest(cadence)
                if bare:
                    continue
                first = mark(self.caller)
                kept.append(self.work.start())
                times.append((first, mark(self.work.stream)))
        late = int(held.query())
        torch.cuda.synchronize()
        own = ([a.elapsed_time(b) for a, b in times] if cadence else
               [times[0][0].elapsed_time(times[-1][1]) / reductions] if times else [])
        return (begin.elapsed_time(end) if products else 0, own,
                not times or not products or times[-1][1].elapsed_time(end) > 0), late


def beside(job):
    """task: product (a name), side (copies, nccl, tide), elements (fp32 of the output), ctas,
    cadence (seconds; 0: back to back), rounds. Notes of rank 0: alone_us, of a product; slower, by
    what part the products of a window are; lost_us, by each reduce-scatter; own_ms; covered: in how
    many rounds the products lasted as long as the reduce-scatters."""
    task = job.task
    torch.cuda.empty_cache()
    work = {"nccl": lambda: Nccl(job.world, task["elements"], task["ctas"]),
            "copies": lambda: Copies(job.world, task["elements"]),
            "tide": lambda: Fsdp(job, job.world, task["elements"])}[task["side"]]()
    products = Products(task["product"]) if job.rank == 0 else None
    windows = Windows(job, work, products)
    count = 200 if products else 0
    kept = [work.start() for _ in range(2)]
    torch.cuda.synchronize()
    del kept
    windows.run(0, 0, count)
    alone = windows.run(0, 0, count)[0] / max(1, count)
    cadence = task["cadence"]
    own = statistics.median(windows.run(2, 0, 0)[1])
    # As many as the products of a window can outlast, which are at most MOST_QUEUED: beside them a
    # reduce-scatter takes longer, here up to twice as long.
    each = max(cadence * 1e3, 2 * own)
    most = int((MOST_QUEUED * alone / 1.4 - 2 * own) / each) if products else 0
    reductions = agreed(max(1, min(most, 3 if cadence else 8)))
    if products:
        # Pauses, too, take longer beside products.
        count = min(MOST_QUEUED, max(20, round(1.4 * (reductions * each + 2 * own) / alone)))
    slower, lost, owns, covered, alones = [], [], [], 0, []
    for _ in range(task["rounds"]):
        alone = windows.run(reductions if cadence else 0, cadence, count, bare=True)[0]
        loaded, own, longest = windows.run(reductions, cadence, count)
        owns += own
        covered += longest
        if products:
            alones.append(alone / count)
            slower.append(loaded / alone - 1)
            lost.append((loaded - alone) / reductions)
    if products:
        job.notes.update(alone_us=statistics.median(alones) * 1e3,
                         slower=statistics.median(slower), slower_all=slower,
                         lost_us=statistics.median(lost) * 1e3,
                         own_ms=statistics.median(owns), covered=covered, products=count,
                         reductions=reductions)
    dist.barrier(host_group())
