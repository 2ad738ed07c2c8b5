"""One rank of the benchmark: FSDP2's own all-gather and reduce-scatter of one group, timed.

A group of SIZE MiB (fp32) is unsharded and reduced as FSDP2 does it, copies included: unshard() is
copy-in, collective, copy-out; foreach_reduce is gradient pack, collective, view-out. Knows nothing
of Tide. Rank 0 prints one JSON line per size: seconds of each repetition.
"""
import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

REPETITIONS = 7
WARM_UP = 3  # the first is recorded by Tide and runs stock


class Weights(torch.nn.Module):
    """Four parameters; the gradient costs one pass over them."""

    def __init__(self, mebibytes):
        super().__init__()
        rows = mebibytes * 2**20 // 4 // 4 // 1024
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(rows, 1024)) for _ in range(4))

    def forward(self, x):
        return sum((w * x).sum() for w in self.weights)


def timed_reduce(times):
    """Wraps FSDP2's foreach_reduce with a clock."""
    original = _fsdp_param_group.foreach_reduce

    def wrapper(*arguments, **keywords):
        dist.barrier()
        begin = time.perf_counter()
        result = original(*arguments, **keywords)
        times.append(time.perf_counter() - begin)
        return result

    _fsdp_param_group.foreach_reduce = wrapper


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    reduces = []
    timed_reduce(reduces)
    for size in map(int, sys.argv[1:]):
        torch.manual_seed(0)
        model = fully_shard(Weights(size))
        gathers = []
        reduces.clear()
        for _ in range(WARM_UP + REPETITIONS):
            dist.barrier()
            begin = time.perf_counter()
            model.unshard()
            gathers.append(time.perf_counter() - begin)
            model(torch.ones(1024)).backward()
            model.zero_grad()
        if dist.get_rank() == 0:
            print(json.dumps({"mebibytes": size, "all_gather": gathers[WARM_UP:],
                              "reduce_scatter": reduces[WARM_UP:]}), flush=True)
        del model
    dist.barrier()
    dist.destroy_process_group()


main()
