"""A rank that times collectives. Hands back a list of [what, bytes, seconds of each sample].

Host time around iterations that are launched back to back and waited for together; the slowest
rank's counts. Bytes are those of the larger buffer of a rank, as NCCL states sizes."""
import argparse
import time

import torch
import torch.distributed as dist

from rank import hand_back, process_group, synchronize

PING_PONG_BYTES = 64 << 10  # up to here send/recv is timed, for its latency
SAMPLES = 5
SAMPLE_SECONDS = 0.03
MOST_ITERATIONS = 300


def slowest(seconds, device):
    """Of all ranks."""
    tensor = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def timed(step, iterations, device):
    """Seconds of one iteration, after all ranks have met."""
    dist.all_reduce(torch.zeros(1, device=device))
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(iterations):
        step()
    synchronize(device)
    return (time.perf_counter() - begin) / iterations


def samples(step, device):
    timed(step, 2, device)  # connects
    estimate = slowest([timed(step, 3, device)], device)[0]  # the same on all: so is what follows
    iterations = min(max(int(SAMPLE_SECONDS / max(estimate, 1e-9)), 1), MOST_ITERATIONS)
    return slowest([timed(step, iterations, device) for _ in range(SAMPLES)], device)


def steps(size, rank, ranks, device):
    """(name, step) of everything that is timed at this size."""
    data = torch.zeros(size // 4, device=device)
    part = torch.zeros(size // 4 // ranks, device=device)
    yield "all_gather", lambda: dist.all_gather_into_tensor(data, part)
    yield "all_reduce", lambda: dist.all_reduce(data)
    if size > PING_PONG_BYTES:
        return

    def there_and_back():
        if rank == 0:
            dist.send(data, 1)
            dist.recv(data, 1)
        elif rank == 1:
            dist.recv(data, 0)
            dist.send(data, 0)

    yield "send_recv", there_and_back


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="nccl", help=argparse.SUPPRESS)
    parser.add_argument("--most", type=int, default=256 << 20, help="greatest size, bytes")
    arguments = parser.parse_args()
    with process_group(arguments.backend) as (rank, ranks, device):
        results, size = [], 1024
        while size <= arguments.most:
            for name, step in steps(size, rank, ranks, device):
                times = samples(step, device)
                if name == "send_recv":
                    times = [seconds / 2 for seconds in times]  # one way
                results.append([name, size, times])
            size *= 4
        hand_back(results)


main()
