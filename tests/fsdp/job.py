"""What every case has at hand: a rank of a process group, tiny models, a training loop, a record.

A case is a function of a Job. It builds a model, shards it, trains it; the job records every loss
and the hash of every final shard, which the runner compares between runs.
"""
import functools
import hashlib
import itertools
import os
import re

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor

DEVICE = os.environ.get("DEVICE", "cpu")  # or cuda: what parameters and batches live on
STEPS = 8
LONG = range(20)  # steps after which fp32 losses may differ by 1e-6
BF16_SUM32 = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # bf16 or fp16 in, fp32 sums


def _counting(function):
    """Marks the parameters of every group that communicates through `function`, once."""

    @functools.wraps(function)
    def call(fsdp_params, *args, **kwargs):
        if not any(hasattr(p, "counted") for p in fsdp_params):
            call.groups += 1
        for p in fsdp_params:
            p.counted = True
        return function(fsdp_params, *args, **kwargs)

    call.groups = 0
    return call


_gather = _fsdp_param_group.foreach_all_gather = _counting(_fsdp_param_group.foreach_all_gather)
_reduce = _fsdp_param_group.foreach_reduce = _counting(_fsdp_param_group.foreach_reduce)


def count_groups():
    """Parameter groups of this process, so far, for which FSDP2 ran a collective."""
    return _gather.groups + _reduce.groups


class Block(nn.Module):
    """x + down(gelu(up(norm(x)))): matrices and vectors in one group."""

    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Maps (batch, width) to (batch, width) through `depth` blocks between two matrices."""

    def __init__(self, width=16, hidden=32, depth=2):
        super().__init__()
        self.width = width
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(depth))
        self.last = nn.Linear(width, width)

    def forward(self, x):
        x = self.first(x.to(self.first.weight.dtype))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Turns(nn.Module):
    """Four matrices, of which one at a time is trained."""

    def __init__(self):
        super().__init__()
        self.width = 16
        self.parts = nn.ParameterList(torch.randn(shape) for shape in ((8, 4), (4, 8), (32, 4)))

    def forward(self, x):
        return x * sum(part.sum() for part in self.parts)

    def train_only(self, index):
        for i, part in enumerate(self.parts):
            part.requires_grad_(i == index)


def has_memory(buffer):
    """False for a buffer that Tide made without memory, which says so when it is read."""
    try:
        return buffer.data_ptr() != 0
    except RuntimeError as error:  # torch's own text before 2.12
        if not re.search("Tide|invalid python storage", str(error)):
            raise
        return False


def peak_of(step):
    """Bytes that torch's allocator held at most during step(), above what it held before."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


class Job:
    """One rank of one case. `losses`, `shards` and `notes` end in the result file."""

    def __init__(self, task):
        self.task = task
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = DEVICE
        self.mesh = init_device_mesh(DEVICE, (self.world,))
        self.losses, self.shards, self.notes = [], {}, {}
        torch.manual_seed(1234)  # the same weights on every rank and in every run

    def shard(self, model, **options):
        """Shards the model as one group a block and one for the rest; returns it."""
        options.setdefault("mesh", self.mesh)
        for block in getattr(model, "blocks", ()):
            fully_shard(block, **options)
        return fully_shard(model, **options)

    def batch(self, step, width, rows=4):
        """Input and target of a step, another one on every rank."""
        generator = torch.Generator().manual_seed(1000 * step + self.rank)
        x = torch.randn(rows, width, generator=generator).to(DEVICE)
        return x, torch.sin(3 * x)

    def loss(self, model, step):
        x, target = self.batch(step, model.width)
        return F.mse_loss(model(x).float(), target)

    def sgd(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train(self, model, optimizer=None, steps=range(STEPS), between=None):
        """Plain steps; `between(step)` is called after each. Returns the optimizer."""
        optimizer = optimizer or self.sgd(model)
        for step in steps:
            loss = self.loss(model, step)
            loss.backward()
            self.step(optimizer, loss)
            if between:
                between(step)
        return optimizer

    def step(self, optimizer, loss):
        optimizer.step()
        optimizer.zero_grad()
        self.losses.append(loss.item())

    def watch(self, model):
        """Notes, step by step, how many buffers FSDP2 got that have no memory."""
        for module in (model, *getattr(model, "blocks", ())):
            state = module._get_fsdp_state()
            for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
                for kind, comm in (("gather", group._all_gather_comm),
                                   ("reduce", group._reduce_scatter_comm)):
                    comm.allocate = functools.partial(self._allocate, kind, comm)

    def _allocate(self, kind, comm, size, *, dtype, device):
        buffer = type(comm).allocate(comm, size, dtype=dtype, device=device)
        counts = self.notes.setdefault("lazy", {}).setdefault(kind, [])
        counts += [0] * (len(self.losses) + 1 - len(counts))
        counts[-1] += not has_memory(buffer)
        return buffer

    def finish(self, model, name="model"):
        """Records the hash of every shard this rank ends with."""
        for key, parameter in model.named_parameters():
            local = parameter.detach()
            local = local.to_local() if isinstance(local, DTensor) else local
            data = local.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes()
            self.shards[f"{name}.{key}"] = hashlib.sha256(data).hexdigest()

    def result(self):
        return {"losses": [loss.hex() for loss in self.losses], "shards": self.shards,
                "notes": self.notes}
