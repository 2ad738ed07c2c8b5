"""Stock FSDP2 with a reduce-scatter that adds in Tide's documented order, to compare bits with.

In fp32: P_c = ((x0 + x1) + x2) + ... by local rank of the node that is c nodes before the owner's,
mod M; then (P_0 + P_1) + ...; then times 1/W for AVG, once; then the cast to the output's dtype. On
one node that is P_0. gloo and NCCL add in an order of their own.
"""
import contextlib

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

# torch 2.13 renamed reduce_scatter_tensor; FSDP2 looks either of them up when it calls it.
NAMES = [n for n in ("reduce_scatter_tensor", "reduce_scatter_single") if hasattr(dist, n)]

# Tide records a group's plan while its first reduce-scatter runs stock.
STOCK_FIRST = 1

# Ranks of a node, by number in the job; None: all are on one.
local_ranks = None

# Adds from the last rank to the first: another valid order, to see how far orders part.
descending = False


def in_order(parts):
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def reduce_scatter_in_order(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
    """The same contract as torch.distributed.reduce_scatter_tensor, synchronous, SUM and AVG."""
    if async_op or op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise NotImplementedError(f"the reference knows no {op} with async_op={async_op}")
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    inputs = [torch.empty_like(input) for _ in range(world)]
    dist.all_gather(inputs, input.contiguous(), group=group)
    chunks = [x.view(world, -1)[rank].float() for x in inputs]
    nodes = {}  # number of the node -> its chunks, by local rank
    for chunk, number in zip(chunks, dist.get_process_group_ranks(group or dist.group.WORLD)):
        nodes.setdefault(number // local_ranks if local_ranks else 0, []).append(chunk)
    partials = [in_order(of_node[::-1] if descending else of_node) for of_node in nodes.values()]
    here = rank // len(next(iter(nodes.values())))
    total = in_order([partials[here - c] for c in range(len(partials))])
    if op == dist.ReduceOp.AVG:
        total *= 1.0 / world
    output.copy_(total.view(output.shape))


@contextlib.contextmanager
def installed():
    """Within, FSDP2's reduce-scatters add in the documented order, but for a group's first."""
    stock = {name: getattr(dist, name) for name in NAMES}
    stock_reduce = _fsdp_param_group.foreach_reduce
    in_order = False

    def reduce(fsdp_params, *args, **kwargs):
        nonlocal in_order
        # Parameters with a gradient -> reduce-scatters so far; it dies with the group.
        seen = fsdp_params[0].__dict__.setdefault("reduced", {})
        key = tuple(id(p) for p in fsdp_params)
        in_order = seen.get(key, 0) >= STOCK_FIRST
        seen[key] = seen.get(key, 0) + 1
        return stock_reduce(fsdp_params, *args, **kwargs)

    def patched(name):
        return lambda *args, **kwargs: (
            reduce_scatter_in_order if in_order else stock[name])(*args, **kwargs)

    try:
        _fsdp_param_group.foreach_reduce = reduce
        for name in NAMES:
            setattr(dist, name, patched(name))
        yield
    finally:
        _fsdp_param_group.foreach_reduce = stock_reduce
        for name in NAMES:
            setattr(dist, name, stock[name])
