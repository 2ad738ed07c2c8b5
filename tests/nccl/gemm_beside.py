"""A rank that runs reduce-scatters; rank 0 measures a GEMM alone and beside them. Both ranks are on
one GPU, so the CTAs of both take multiprocessors from the GEMM.

Rank 0 hands back {"alone": [us], "beside": [us], "covered": bool, "reduce_scatter_us": us,
"multiprocessors": n}: each figure the mean of BATCH GEMMs; covered: a reduce-scatter had ended
before the first GEMM began, and the last was still running when the last GEMM ended."""
import argparse
import time

import torch
import torch.distributed as dist

from rank import hand_back, process_group, synchronize

GEMM = (256, 8192, 8192)  # m, n, k, in bf16: 128 tiles of 128 x 128
BATCH = 10
BATCHES = 40
REPEATS = 3
COVER_SECONDS = 0.6  # of reduce-scatters; the GEMMs take less than a tenth


def time_gemms(a, b, stream):
    """Microseconds of a GEMM, of each batch."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(BATCHES + 1)]
    with torch.cuda.stream(stream):
        events[0].record()
        for event in events[1:]:
            for _ in range(BATCH):
                torch.mm(a, b)
            event.record()
    stream.synchronize()
    return [begin.elapsed_time(end) * 1e3 / BATCH for begin, end in zip(events, events[1:])]


def event_after(work, stream):
    """An event that has happened once `work` has ended. Of one stream, in the order of works."""
    event = torch.cuda.Event()
    with torch.cuda.stream(stream):
        work.wait()
        event.record()
    return event


def seconds_of(step, device):
    """Of one reduce-scatter, the same number on every rank."""
    step().wait()
    synchronize(device)
    begin = time.perf_counter()
    for work in [step() for _ in range(5)]:
        work.wait()
    synchronize(device)
    seconds = torch.tensor([(time.perf_counter() - begin) / 5], dtype=torch.float64, device=device)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=64 << 20, help="of a reduce-scatter's input")
    parser.add_argument("--min-ctas", type=int, default=0)
    arguments = parser.parse_args()
    with process_group("nccl", arguments.min_ctas) as (rank, ranks, device):
        m, n, k = GEMM
        a = torch.randn(m, k, dtype=torch.bfloat16, device=device)
        b = torch.randn(n, k, dtype=torch.bfloat16, device=device).T
        stream, observer = torch.cuda.Stream(), torch.cuda.Stream()
        data = torch.ones(arguments.bytes // 4, device=device)
        part = torch.empty(data.numel() // ranks, device=device)
        step = lambda: dist.reduce_scatter_tensor(part, data, async_op=True)
        synchronize(device)

        alone, beside, covered = [], [], True
        if rank == 0:
            time_gemms(a, b, stream)  # chooses its kernel, warms up
            alone = time_gemms(a, b, stream)
        one = seconds_of(step, device)
        number = min(max(int(COVER_SECONDS / one), 8), 400)
        for _ in range(REPEATS):
            dist.all_reduce(torch.zeros(1, device=device))
            synchronize(device)
            works = [step() for _ in range(number)]
            if rank == 0:
                first, last = (event_after(work, observer) for work in (works[0], works[-1]))
                first.synchronize()
                beside += time_gemms(a, b, stream)
                covered = covered and not last.query()
            for work in works:
                work.wait()
            synchronize(device)
        if rank == 0:
            alone += time_gemms(a, b, stream)
        hand_back({"alone": alone, "beside": beside, "covered": covered,
                   "reduce_scatter_us": one * 1e6,
                   "multiprocessors":
                       torch.cuda.get_device_properties(device).multi_processor_count})


if __name__ == "__main__":
    main()
