"""A rank that runs the five collectives a tuner is asked about, at many sizes and two types. What
NCCL chose stands in its log. Sizes are bytes of the larger buffer of a rank."""
import argparse

import torch
import torch.distributed as dist

from rank import DTYPES, hand_back, process_group

ODD_BYTES = 1000012  # of 250003 floats, 500006 bfloat16


def run_all(count, dtype, ranks, device):
    """`count` elements in the larger buffer."""
    part = count // ranks
    data = torch.ones(count, dtype=dtype, device=device)
    one = torch.ones(part, dtype=dtype, device=device)
    dist.all_gather_into_tensor(data[:part * ranks], one)
    dist.reduce_scatter_tensor(one, data[:part * ranks])
    dist.all_reduce(data)
    dist.broadcast(data, 0)
    dist.reduce(data, 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="nccl", help=argparse.SUPPRESS)
    parser.add_argument("--most", type=int, default=1 << 30, help="greatest size, bytes")
    parser.add_argument("--min-ctas", type=int, default=0)
    arguments = parser.parse_args()
    sizes = [4**power for power in range(5, 16) if 4**power <= arguments.most] + [ODD_BYTES]
    with process_group(arguments.backend, arguments.min_ctas) as (_, ranks, device):
        for dtype in DTYPES.values():
            for size in sizes:
                run_all(size // dtype.itemsize, dtype, ranks, device)
        hand_back({"collectives": 5 * len(sizes) * len(DTYPES)})


main()
