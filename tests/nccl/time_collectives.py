"""A rank that times collectives as it is told: reads one JSON object a line from its standard input,
{"what", "bytes", "iterations"}, and answers each with a line, the seconds of one iteration.

Host time around iterations that are launched back to back and waited for together. Bytes are those of
the larger buffer of a rank, as NCCL states sizes. send_recv is there and back between ranks 0 and 1,
halved."""
import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist

from rank import keep_to, process_group, synchronize


def timed(step, iterations, device):
    """Seconds of one iteration, after all ranks have met."""
    dist.all_reduce(torch.zeros(1, device=device))
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(iterations):
        step()
    synchronize(device)
    return (time.perf_counter() - begin) / iterations


def step_of(what, size, rank, ranks, device):
    part = torch.zeros(size // 4 // ranks, device=device)
    data = torch.zeros(part.numel() * ranks, device=device)
    if what == "all_gather":
        return lambda: dist.all_gather_into_tensor(data, part)
    if what == "all_reduce":
        return lambda: dist.all_reduce(data)

    def there_and_back():
        if rank == 0:
            dist.send(data, 1)
            dist.recv(data, 1)
        elif rank == 1:
            dist.recv(data, 0)
            dist.send(data, 0)

    return there_and_back


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="nccl", help=argparse.SUPPRESS)
    parser.add_argument("--cpus", type=int, nargs="*", default=[])
    arguments = parser.parse_args()
    keep_to(arguments.cpus)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints does so among the errors
    steps = {}  # kept, with their buffers: the same memory in every round
    with process_group(arguments.backend) as (rank, ranks, device):
        for line in sys.stdin:
            wanted = json.loads(line)
            what, size = wanted["what"], wanted["bytes"]
            if (what, size) not in steps:
                steps[what, size] = step_of(what, size, rank, ranks, device)
            seconds = timed(steps[what, size], wanted["iterations"], device)
            print(seconds / 2 if what == "send_recv" else seconds, file=answers, flush=True)


main()
