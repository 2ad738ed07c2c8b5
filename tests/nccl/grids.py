"""A rank that profiles reduce-scatters and, on rank 0, the GEMM of gemm_beside.py. Hands back
{"reduce_scatter": [CTAs of each NCCL kernel], "gemm": [CTAs of each other large kernel]}."""
import argparse
import json
import math
import os
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from gemm_beside import GEMM
from rank import hand_back, process_group, synchronize

REPEATS = 3


def ctas_of_kernels(body, device):
    """[(name, CTAs)] of the kernels that `body` runs."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPEATS):
            body()
        synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
    return [(event["name"], math.prod(event["args"]["grid"])) for event in events
            if event.get("cat") == "kernel"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=16 << 20)
    parser.add_argument("--min-ctas", type=int, default=16)
    arguments = parser.parse_args()
    with process_group("nccl", arguments.min_ctas) as (_, ranks, device):
        data = torch.ones(arguments.bytes // 4, device=device)
        part = torch.empty(data.numel() // ranks, device=device)
        m, n, k = GEMM
        a = torch.randn(m, k, dtype=torch.bfloat16, device=device)
        b = torch.randn(n, k, dtype=torch.bfloat16, device=device)
        step = lambda: dist.reduce_scatter_tensor(part, data)
        step()
        a @ b.T
        synchronize(device)
        hand_back({
            "reduce_scatter": [ctas for name, ctas in ctas_of_kernels(step, device)
                               if "nccl" in name.lower()],
            "gemm": [[name, ctas] for name, ctas in ctas_of_kernels(lambda: a @ b.T, device)],
        })


if __name__ == "__main__":
    main()
