"""Cases of run_profile and run_bench, for the ranks of tests/fsdp/worker.py. Sizes come with the
task; what was measured goes into the notes. All but beside.py's run on the CPU as well.
"""
import contextlib
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

import models
import symmetric
from beside import beside
from cases import Case
from collectives import collectives
from job import DEVICE
from settle import empty, synchronize

CUDA = DEVICE == "cuda"


def build(job, mixed=False):
    """task: model, layers, seq; symmetric (no): communicate through symmetric memory."""
    task = job.task
    model = models.build(task["model"], task["layers"], job.mesh, job.device, mixed=mixed)
    if task.get("symmetric"):
        job.notes["symmetric"] = symmetric.use(model, job.mesh.get_group())
    x = models.batch(task["model"], task["seq"], job.device, job.rank)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3), x


@contextlib.contextmanager
def traced(job, name):
    """Rank 0 writes what happens within to FOLDER/name.json."""
    if job.rank != 0:
        yield
        return
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if CUDA else [])
    with profiler(activities=activities) as seen:
        yield
        synchronize()
    seen.export_chrome_trace(os.path.join(job.task["folder"], f"{name}.json"))


def profile(job):
    """task: model, layers, seq, folder; mixed (yes): parameters in fp32. Traces of a forward
    without gradients and of a step."""
    empty()
    model, optimizer, x = build(job, mixed=job.task.get("mixed", True))
    for _ in range(3):  # Tide records the first, and cuBLAS loads its kernels
        models.step(model, optimizer, x)
    with torch.no_grad():
        model(x)
    synchronize()
    with traced(job, "warm"):  # the profiler's own start takes long
        models.step(model, optimizer, x)
    for name in ("forward", "step"):
        synchronize()
        dist.barrier()
        synchronize()
        with traced(job, name):
            if name == "forward":
                with torch.no_grad():
                    model(x)
            else:
                models.step(model, optimizer, x)
    synchronize()
    job.notes["multiprocessors"] = (
        torch.cuda.get_device_properties(0).multi_processor_count if CUDA else 0)


def step_time(job):
    """task: model, layers, seq, warm, steps. Seconds of every step, and bytes of memory."""
    empty()
    before = used()
    model, optimizer, x = build(job)
    for _ in range(job.task["warm"]):
        models.step(model, optimizer, x)
    synchronize()
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(job.task["steps"]):
        dist.barrier()
        synchronize()
        begin = time.perf_counter()
        models.step(model, optimizer, x)
        synchronize()
        seconds.append(time.perf_counter() - begin)
    job.notes.update(seconds=seconds)
    if CUDA:
        ranks_of_gpu = -(-job.world // torch.cuda.device_count())
        job.notes.update(allocated=torch.cuda.max_memory_allocated(),
                         reserved=torch.cuda.max_memory_reserved(),
                         of_the_gpu=(used() - before) / ranks_of_gpu)
    del model, optimizer, x
    empty()


def used():
    """Bytes in use on this rank's GPU by all processes, when all ranks are here."""
    if not CUDA:
        return 0
    synchronize()
    dist.barrier()
    synchronize()
    free, total = torch.cuda.mem_get_info()
    dist.barrier()
    synchronize()
    return total - free


class Cost:
    """Microseconds of a call: of the clock, and of the thread's processor time."""

    def __init__(self):
        self.wall, self.cpu = [], []

    @contextlib.contextmanager
    def __call__(self):
        wall, cpu = time.perf_counter(), time.thread_time()
        yield
        self.cpu.append((time.thread_time() - cpu) * 1e6)
        self.wall.append((time.perf_counter() - wall) * 1e6)

    def medians(self, skipped):
        return {"wall_us": statistics.median(self.wall[skipped:]),
                "cpu_us": statistics.median(self.cpu[skipped:])}


def host_cost(job):
    """task: model, layers (1), seq, repetitions. What the calling thread spends in the unshard()
    and in the foreach_reduce() of a layer's group, with nothing queued on the GPU before it."""
    empty()
    skipped = 5  # recordings, and the first use of everything
    model, optimizer, x = build(job)
    layer, gather, reduce = model.layers[0], Cost(), Cost()
    stock = _fsdp_param_group.foreach_reduce
    of_layer = len(list(layer.parameters()))

    def timed(fsdp_params, *args, **kwargs):
        if len(fsdp_params) != of_layer:
            return stock(fsdp_params, *args, **kwargs)
        synchronize()
        with reduce():
            return stock(fsdp_params, *args, **kwargs)

    _fsdp_param_group.foreach_reduce = timed
    try:
        models.step(model, optimizer, x)
        for _ in range(job.task["repetitions"] + skipped):
            synchronize()
            dist.barrier()
            synchronize()
            with gather():
                layer.unshard()
            model(x).float().pow(2).mean().backward()
            optimizer.zero_grad()
    finally:
        _fsdp_param_group.foreach_reduce = stock
    synchronize()
    job.notes.update(parameters=of_layer, all_gather=gather.medians(skipped),
                     reduce_scatter=reduce.medians(skipped))
    del model, optimizer, x, layer


TABLE = {function.__name__: Case(function, fp32=False)
         for function in (profile, step_time, host_cost, beside, collectives)}
