"""Cases of many steps for run_training: a Llama-like training run, and random sequences of what
FSDP2 lets a user do. Sizes and seeds come with the task. What is recorded stays on the device until
the end: reading it earlier would wait for the streams, and hide an order that is missing.
"""
import ctypes
import gc
import os
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

import reference
import train_llama
from cases import Case
from job import BF16_SUM32, DEVICE, Net

MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def prepare(task):
    """The same bits from the same numbers on a GPU as well (run_training sets what cuBLAS needs),
    and the reference's order, which must not stay that of the task before."""
    reference.descending = task.get("descending", False)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    if DEVICE == "cuda":  # the others add gradients of attention in any order
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


class Record:
    """Scalars that stay on the device; `end()` puts them among the job's losses, and what each is
    into its notes."""

    def __init__(self, job):
        self.job, self.scalars = job, []
        self.labels = job.notes["labels"] = []

    def loss(self, value, label):
        self.scalars.append(value.detach().double())
        self.labels.append(label)

    def bits(self, tensor, label):
        """A sum over the tensor's bits that changes when one of them does, or when two move."""
        whole = tensor.detach().contiguous().view(-1)
        whole = whole.view({2: torch.int16, 4: torch.int32}[whole.element_size()]).long()
        weights = torch.arange(1, whole.numel() + 1, device=whole.device)
        self.scalars.append(((whole * weights).sum() % 2**52).double())
        self.labels.append(label)

    def end(self):
        if self.scalars:
            self.job.losses += torch.stack(self.scalars).tolist()
        self.scalars = []


def llama(job):
    """task: steps; model: dim, layers, heads, kv_heads, hidden; seq; batch; precision: mixed or
    fp32; descending: the reference adds from the last rank on."""
    task = job.task
    prepare(task)
    model = train_llama.Llama(256, **task["model"]).to(DEVICE)
    train_llama.shard(model, task["precision"], job.mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.frombuffer(bytearray(train_llama.LICENSE.read_bytes()), dtype=torch.uint8).long()
    data = train_llama.batches(text, task["batch"], task["seq"], job.rank, DEVICE)
    record = Record(job)
    for step in range(task["steps"]):
        inputs, targets = next(data)
        loss = F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        record.loss(loss, f"step {step}")
    record.end()
    job.finish(model)


class Model:
    """A net, its optimizer, and the switches that a sequence turns."""

    KINDS = (("fp32", None), ("bf16", BF16_SUM32), ("mixed", MIXED))

    def __init__(self, job, common, turn):
        kind, policy = common.choice(self.KINDS)
        self.net = Net(common.choice((10, 16, 64)), common.choice((13, 32, 256)),
                       common.randint(1, 4)).to(DEVICE)
        if kind == "bf16":
            self.net.bfloat16()
        options = {"mp_policy": policy} if policy else {}
        job.shard(self.net, reshard_after_forward=common.choice((True, False)), **options)
        self.optimizer = job.sgd(self.net)
        self.name = f"the {kind} model of action {turn}"
        self.sharded = list(self.net.named_parameters())
        with torch.no_grad():  # the root must be the first that runs, or a block takes its place
            job.loss(self.net, 0)

    @property
    def blocks(self):
        return list(self.net.blocks)


class Sequence:
    """One rank's part. Whatever communicates is drawn from `common`, alike on all ranks; delays,
    garbage collections and how long a dead model lingers from `own`, which is the rank's."""

    MODELS = 3  # alive at once, at most

    def __init__(self, job):
        self.job = job
        self.common = random.Random(job.task["seed"])
        self.own = random.Random(f"{job.task['seed']} {job.rank}")
        self.record = Record(job)
        self.models, self.dead, self.turn = [], [], 0

    def play(self):
        actions = (self.train, self.train, self.train, self.evaluate, self.one_block, self.gather,
                   self.gather_early, self.reshard, self.look, self.prefetch, self.switch,
                   self.build, self.drop)
        for self.turn in range(self.job.task["steps"]):
            self.disturb()
            if not self.models:
                self.build()
            self.common.choice(actions)()
            if self.turn % 100 == 99:
                self.record.end()
        for number, model in enumerate(self.models):
            self.settle(model)
            for block in model.blocks:
                block.reshard()
            model.net.reshard()
            self.job.finish(model.net, f"model{number}")
        self.record.end()

    def disturb(self):
        """What this rank alone does."""
        if self.own.random() < 0.15:
            gc.collect()
        if self.own.random() < 0.2:
            time.sleep(self.own.random() * 0.003)
        if DEVICE == "cuda" and self.own.random() < 0.2:
            torch.cuda._sleep(self.own.randrange(1_000_000))  # cycles
        self.dead = [(model, until) for model, until in self.dead if until > self.turn]

    def pick(self):
        model = self.common.choice(self.models)
        return model, self.common.choice(model.blocks)

    def forward(self, model):
        """Through some of the blocks, in order; a mean over what comes out."""
        net = model.net
        chosen = [b for b in model.blocks if self.common.random() < 0.7]

        def partial(x):
            x = net.first(x.to(net.first.weight.dtype))
            for block in chosen:
                x = block(x)
            return net.last(x)

        net.forward = partial
        try:
            return self.job.loss(net, self.turn)
        finally:
            del net.forward

    def train(self):
        model, _ = self.pick()
        loss = self.forward(model)
        loss.backward()
        self.settle(model)
        model.optimizer.step()
        model.optimizer.zero_grad()
        self.record.loss(loss, f"action {self.turn}: loss of {model.name}")
        for name, parameter in model.sharded:
            self.record.bits(parameter.to_local(),
                             f"action {self.turn}: shard of {model.name} {name} after its step")

    def settle(self, model):
        """Waits for gathers that are under way: their shards are about to change, or to go."""
        for block in model.blocks:
            block.unshard()
        if self.common.random() < 0.7:
            for block in model.blocks:
                block.reshard()

    def evaluate(self):
        model, _ = self.pick()
        with torch.no_grad():
            self.record.loss(self.forward(model), f"action {self.turn}: evaluation, {model.name}")

    def one_block(self):
        model, block = self.pick()
        x, _ = self.job.batch(self.turn, model.net.width)
        with torch.no_grad():
            block.unshard()  # for its dtype
            self.record.loss(block(x.to(block.up.weight.dtype)).float().sum(),
                             f"action {self.turn}: one block of {model.name}")

    def gather(self):
        self.pick()[1].unshard()

    def gather_early(self):
        handle = self.pick()[1].unshard(async_op=True)
        if handle and self.common.random() < 0.3:
            handle.wait()

    def reshard(self):
        self.pick()[1].reshard()

    def look(self):
        model, block = self.pick()
        block.unshard()
        for name, parameter in block.named_parameters():
            self.record.bits(parameter, f"action {self.turn}: gathered {name} of {model.name}")
        if self.common.random() < 0.5:
            block.reshard()

    def prefetch(self):
        model, block = self.pick()
        others = [b for b in model.blocks if b is not block]
        self.common.shuffle(others)
        if self.common.random() < 0.5:
            block.set_modules_to_forward_prefetch(others[:self.common.randint(0, 2)])
        else:
            block.set_modules_to_backward_prefetch(others[:self.common.randint(0, 2)])

    def switch(self):
        model, block = self.pick()
        target = self.common.choice((model.net, block))
        to = self.common.choice((True, False))
        self.common.choice((target.set_reshard_after_forward,
                            target.set_reshard_after_backward))(to)

    def build(self):
        if len(self.models) < self.MODELS:
            self.models.append(Model(self.job, self.common, self.turn))

    def drop(self):
        """The model is out of use on all ranks at once, and gone on each in its own time."""
        model = self.models.pop(self.common.randrange(len(self.models)))
        self.settle(model)
        if self.own.random() < 0.5:
            self.dead.append((model, self.turn + self.own.randrange(1, 40)))


def random_sequence(job):
    """task: steps, seed."""
    prepare(job.task)
    Sequence(job).play()
    gc.collect()


class Mallinfo2(ctypes.Structure):
    """<malloc.h>: bytes of all arenas."""
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]


def holdings():
    """What this process holds."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    heap = mallinfo2()
    held = {"descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "heap bytes": heap.uordblks + heap.hblkhd}
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        held["bytes of the GPU"] = torch.cuda.memory_allocated()
    return held


def endurance(job):
    """task: steps of a small model. Notes: `held`, after a quarter of them and after all."""
    net = Net().to(DEVICE)
    job.shard(net, mp_policy=MIXED)
    optimizer = job.sgd(net)
    job.notes["held"] = []
    for step in range(1, job.task["steps"] + 1):
        job.loss(net, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in (job.task["steps"] // 4, job.task["steps"]):
            job.notes["held"].append(holdings())
    job.finish(net)


TABLE = {function.__name__: Case(function, fp32=False)
         for function in (llama, random_sequence, endurance)}
