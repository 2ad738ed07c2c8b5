"""A rank that runs every collective and compares each element with what it must be.

Values are small integers, so sums of a few ranks are exact in bf16 too, in any order. Hands back a
list of [case, number of wrong elements]."""
import argparse

import torch
import torch.distributed as dist

from rank import DTYPES, hand_back, process_group, synchronize

LARGE_BYTES = 64 << 20
# Elements of a rank; None: LARGE_BYTES in all.
COUNTS = {"small": (1, 3, 1027), "medium": (1, 3, 1027, 262147), "all": (1, 3, 1027, 262147, None)}
UNTOUCHED = -1  # what no rank sends


class Collectives:
    """Each method: input and expected output of one collective of n elements per rank."""

    def __init__(self, rank, ranks, device):
        self.rank, self.ranks, self.device = rank, ranks, device

    def values(self, rank, count, dtype):
        index = torch.arange(count, dtype=torch.int32, device=self.device)
        return ((index * 7 + rank * 5) % 13).to(dtype)

    def sum(self, count, dtype):
        total = torch.zeros(count, dtype=torch.float32, device=self.device)
        for rank in range(self.ranks):
            total += self.values(rank, count, torch.float32)
        return total.to(dtype)

    def empty(self, count, dtype):
        return torch.full((count,), UNTOUCHED, dtype=dtype, device=self.device)

    def mine(self, tensor):
        return tensor.chunk(self.ranks)[self.rank]

    def all_reduce(self, n, dtype):
        data = self.values(self.rank, n, dtype)
        dist.all_reduce(data)
        return data, self.sum(n, dtype)

    def broadcast(self, n, dtype):
        root = self.ranks - 1
        data = self.values(self.rank, n, dtype)
        dist.broadcast(data, root)
        return data, self.values(root, n, dtype)

    def reduce(self, n, dtype):
        data = self.values(self.rank, n, dtype)
        dist.reduce(data, 0)
        # What the others are left with is not defined.
        return (data, self.sum(n, dtype)) if self.rank == 0 else (data, data)

    def all_gather(self, n, dtype):
        out = self.empty(n * self.ranks, dtype)
        dist.all_gather_into_tensor(out, self.values(self.rank, n, dtype))
        return out, torch.cat([self.values(rank, n, dtype) for rank in range(self.ranks)])

    def reduce_scatter(self, n, dtype):
        out = self.empty(n, dtype)
        dist.reduce_scatter_tensor(out, self.values(self.rank, n * self.ranks, dtype))
        return out, self.mine(self.sum(n * self.ranks, dtype))

    def all_to_all(self, n, dtype):
        out = self.empty(n * self.ranks, dtype)
        dist.all_to_all_single(out, self.values(self.rank, n * self.ranks, dtype))
        return out, torch.cat([self.mine(self.values(rank, n * self.ranks, dtype))
                               for rank in range(self.ranks)])

    def send_recv(self, n, dtype):
        """Around the ring; even ranks send first."""
        following, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        data, out = self.values(self.rank, n, dtype), self.empty(n, dtype)
        send, receive = (lambda: dist.send(data, following)), (lambda: dist.recv(out, before))
        for step in (send, receive) if self.rank % 2 == 0 else (receive, send):
            step()
        return out, self.values(before, n, dtype)


WHOLE = ("all_reduce", "broadcast", "reduce", "send_recv")  # n elements are all there is
PARTS = ("all_gather", "reduce_scatter", "all_to_all")      # n elements for each rank


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="nccl", help=argparse.SUPPRESS)
    parser.add_argument("--counts", choices=COUNTS, default="all")
    arguments = parser.parse_args()
    with process_group(arguments.backend) as (rank, ranks, device):
        collectives = Collectives(rank, ranks, device)
        results = []
        for name in WHOLE + PARTS:
            for dtype_name, dtype in DTYPES.items():
                for count in COUNTS[arguments.counts]:
                    n = count or LARGE_BYTES // dtype.itemsize // (ranks if name in PARTS else 1)
                    out, expected = getattr(collectives, name)(n, dtype)
                    synchronize(device)
                    wrong = int((out != expected).sum())
                    results.append([f"{name} of {n} {dtype_name}", wrong])
        hand_back(results)


main()
