"""What run_faults does to a job: long runs, deaths, errors in the wrong place, counted memory."""
import functools
import gc
import os
import pathlib
import re
import signal
import time

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group

import reference
from cases import Case
from job import BF16_SUM32, Net

TABLE = {}
IDLE_IS_OVER = "the others begin another step"
FAULT_STEP = 4  # late enough for Tide to carry everything


def case(function):
    TABLE[function.__name__] = Case(function)
    return function


@case
def short(job):
    model = job.shard(Net())
    job.train(model)
    job.finish(model)


def resources():
    """Of this process: resident bytes, open files, threads."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {"rss": int(status["VmRSS"].split()[0]) * 1024,
            "shared": int(status["RssShmem"].split()[0]) * 1024,
            "files": len(os.listdir("/proc/self/fd")), "threads": int(status["Threads"])}


@case
def long(job):
    model = job.shard(Net(width=64, hidden=256, depth=1))
    samples = job.notes

    def sample(step):
        if step in (100, 499):
            gc.collect()
            samples[step] = resources()

    optimizer = job.train(model, steps=range(500), between=sample)
    del model, optimizer
    gc.collect()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@case
def killed_before_forward(job):  # the others wait in an all-gather
    model = job.shard(Net())

    def fail(step):
        if (step, job.rank) == (FAULT_STEP, 1):
            die()

    job.train(model, between=fail)


@case
def killed_before_backward(job):  # nothing is gathered in backward: they wait in a reduce-scatter
    model = job.shard(Net(), reshard_after_forward=False)
    optimizer = job.sgd(model)
    for step in range(FAULT_STEP + 1):
        loss = job.loss(model, step)
        if (step, job.rank) == (FAULT_STEP, 1):
            die()
        loss.backward()
        job.step(optimizer, loss)


@case
def ended_between_steps(job):  # as a job that is done; then the others want another step of it
    model = job.shard(Net())
    optimizer = job.train(model)
    torch.distributed.barrier()
    if job.rank == 1:
        os._exit(0)
    time.sleep(1)
    print(IDLE_IS_OVER, flush=True)
    job.train(model, optimizer)


@case
def raised_before_copy_out(job):
    model = job.shard(Net())
    stock = _fsdp_param_group.foreach_all_gather_copy_out
    calls = 0

    def copy_out(*arguments):
        nonlocal calls
        calls += 1
        if job.rank == 1 and calls == 20:
            raise RuntimeError("the fault of this test")
        return stock(*arguments)

    _fsdp_param_group.foreach_all_gather_copy_out = copy_out
    try:
        job.train(model)
    finally:
        _fsdp_param_group.foreach_all_gather_copy_out = stock


@case
def memory(job):
    """Notes, for every group and step: what torch holds for a group between FSDP2's hooks."""
    model = job.shard(Net(width=10, hidden=24).bfloat16(), mp_policy=BF16_SUM32)
    seen = job.notes.setdefault("seen", [])
    step_now = 0

    def held(tensor):
        storage = tensor.untyped_storage()
        try:
            pointer = storage.data_ptr()
        except RuntimeError as error:
            # Python's check of a storage that has bytes and no memory; Tide's own text since 2.12.
            if not re.search("holds no data|invalid python storage", str(error)):
                raise
            pointer = 0
        return {"expected": tensor.numel() * tensor.element_size(), "bytes": storage.nbytes(),
                "pointer": pointer}

    stock_gather = _fsdp_param_group.foreach_all_gather
    stock_copy_out = _fsdp_param_group.foreach_all_gather_copy_out
    stock_pack = _fsdp_collectives.foreach_reduce_scatter_copy_in

    def gather(params, *arguments):
        result = stock_gather(params, *arguments)
        seen.append({"step": step_now, "what": "all-gather output",
                     "held": [held(result.all_gather_output)]})
        return result

    def copy_out(result, params, group):
        known = [t for p in params for t in p.all_gather_outputs]
        if known:
            seen.append({"step": step_now, "what": "parameters before copy-out",
                         "held": [held(t) for t in known]})
        stock_copy_out(result, params, group)
        seen.append({"step": step_now, "what": "parameters",
                     "held": [held(t) for p in params for t in p.all_gather_outputs]})

    def pack(gradients, packed, world):
        stock_pack(gradients, packed, world)
        seen.append({"step": step_now, "what": "gradient pack", "held": [held(packed)]})

    def count(step):
        nonlocal step_now
        step_now = step + 1

    _fsdp_param_group.foreach_all_gather = gather
    _fsdp_param_group.foreach_all_gather_copy_out = copy_out
    _fsdp_collectives.foreach_reduce_scatter_copy_in = pack
    try:
        job.train(model, steps=range(4), between=count)
    finally:
        _fsdp_param_group.foreach_all_gather = stock_gather
        _fsdp_param_group.foreach_all_gather_copy_out = stock_copy_out
        _fsdp_collectives.foreach_reduce_scatter_copy_in = stock_pack


@case
def gradient_memory(job):
    """Notes, for every reduce-scatter: this process's private memory right before it, without and
    with landing slots (shared memory). Gradients are all that differs between the modes."""
    model = job.shard(Net(width=512, hidden=2048, depth=3).bfloat16(), mp_policy=BF16_SUM32)
    seen = job.notes.setdefault("seen", [])
    stock = {name: getattr(torch.distributed, name) for name in reference.NAMES}

    def reduce(name, *args, **kwargs):
        # (output, input, ...) by position or by name: the pack is the larger one.
        pack = max((a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)),
                   key=torch.Tensor.numel)
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        kilobytes = {line.split(":")[0]: line.split()[1] for line in lines if line[:3] == "Rss"}
        seen.append({"elements": pack.numel(), "private": int(kilobytes["RssAnon"]) * 1024,
                     "shared": int(kilobytes["RssShmem"]) * 1024})
        return stock[name](*args, **kwargs)

    for name in stock:
        setattr(torch.distributed, name, functools.partial(reduce, name))
    try:
        job.train(model)
    finally:
        for name, function in stock.items():
            setattr(torch.distributed, name, function)
    job.finish(model)
