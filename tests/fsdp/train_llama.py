"""Trains a small Llama-like language model on the bytes of a text with FSDP2.

An ordinary job, as a user would write it: start it with torchrun, on CPU (gloo) or on CUDA (nccl).

    torchrun --standalone --nproc-per-node=4 train_llama.py --steps 20 --result losses.json

Rank 0 writes to --result, as JSON: the losses (mean over ranks) in decimal and as hexadecimal
floats, the seconds of every step, the parameters, and the peak memory of the largest rank in bytes.
"""
import argparse
import json
import os
import pathlib
import resource
import socket
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

LICENSE = pathlib.Path(__file__).resolve().parents[2] / "LICENSE"


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (x * scale.to(x.dtype)) * self.weight


def rotary(seq, head_dim, device, base=10000.0):
    """Cosines and sines, each (seq, head_dim / 2), fp32."""
    frequency = base ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
    angle = torch.outer(torch.arange(seq, device=device), frequency)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x: (batch, heads, seq, head_dim); turns each (first half, second half) pair."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal attention in which several query heads share a key and value head."""

    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(heads * self.head_dim, dim, bias=False)

    def forward(self, x, cos, sin):
        batch, seq, _ = x.shape
        q = self.wq(x).view(batch, seq, self.heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        shared = self.heads // self.kv_heads
        k = rotate(k, cos, sin).repeat_interleave(shared, dim=1)
        v = v.repeat_interleave(shared, dim=1)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, seq, -1))


class Block(nn.Module):
    def __init__(self, dim, heads, kv_heads, hidden):
        super().__init__()
        self.attention_norm = RMSNorm(dim)
        self.attention = Attention(dim, heads, kv_heads)
        self.mlp_norm = RMSNorm(dim)
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocab, dim, layers, heads, kv_heads, hidden):
        super().__init__()
        self.head_dim = dim // heads
        self.embedding = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocab, bias=False)
        self.output.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        cos, sin = rotary(tokens.shape[1], self.head_dim, tokens.device)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output(self.norm(x))


def shard(model, precision, mesh):
    """One parameter group a layer, one for the rest; gradients are summed in fp32."""
    dtype = {"bf16": None, "mixed": torch.bfloat16, "fp32": None}[precision]
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def batches(corpus, batch, seq, seed, device):
    """Endless (inputs, targets), each (batch, seq) int64, from random places of the text."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(corpus) - seq - 1, (batch,), generator=generator)
        rows = torch.stack([corpus[s : s + seq + 1] for s in starts]).to(device)
        yield rows[:, :-1], rows[:, 1:]


def train(model, optimizer, data, steps, device):
    """Returns the losses, mean over ranks, and the seconds of each step."""
    losses, seconds = [], []
    for _ in range(steps):
        inputs, targets = next(data)
        begin = time.monotonic()
        loss = F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        losses.append(mean.item())
        seconds.append(time.monotonic() - begin)
    return losses, seconds


def peak_memory(device):
    """Bytes: the largest over ranks of the process and of torch's allocator on the device."""
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    torch_peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    peak = torch.tensor([process, torch_peak], dtype=torch.int64, device=device)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    return {"process": peak[0].item(), "torch": peak[1].item()}


def pick_device():
    """The rank's GPU, or the CPU. Ranks may share a GPU: then NCCL wants one host a rank."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    rank = int(os.environ["LOCAL_RANK"])
    if int(os.environ["LOCAL_WORLD_SIZE"]) > torch.cuda.device_count():
        os.environ.setdefault("NCCL_HOSTID", f"{socket.gethostname()}-{rank}")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def parse():
    parser = argparse.ArgumentParser(description="a small Llama-like FSDP2 job")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", choices=("bf16", "mixed", "fp32"), default="bf16",
                        help="parameters in bf16; in fp32 with bf16 compute; in fp32")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=704)
    parser.add_argument("--seq", type=int, default=32)
    parser.add_argument("--batch", type=int, default=2, help="sequences a rank and step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=pathlib.Path, default=LICENSE, help="any text")
    parser.add_argument("--result", type=pathlib.Path, help="JSON file that rank 0 writes")
    return parser.parse_args()


def main():
    options = parse()
    device = pick_device()
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
    rank = dist.get_rank()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    torch.manual_seed(options.seed)  # every rank starts from the same weights
    model = Llama(256, options.dim, options.layers, options.heads, options.kv_heads, options.hidden)
    parameters = sum(p.numel() for p in model.parameters())
    model = model.to(device, torch.bfloat16 if options.precision == "bf16" else torch.float32)
    shard(model, options.precision, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    corpus = torch.frombuffer(bytearray(options.corpus.read_bytes()), dtype=torch.uint8).long()
    data = batches(corpus, options.batch, options.seq, options.seed * 1000 + rank, device)
    losses, seconds = train(model, optimizer, data, options.steps, device)
    peak = peak_memory(device)
    if rank == 0:
        print(f"{parameters} parameters, loss {losses[0]:.4f} -> {losses[-1]:.4f}", flush=True)
        if options.result:
            options.result.write_text(json.dumps({
                "parameters": parameters,
                "world_size": dist.get_world_size(),
                "device": device.type,
                "losses": losses,
                "losses_hex": [loss.hex() for loss in losses],
                "step_seconds": seconds,
                "peak_bytes": peak,
            }, indent=1))
    # A thread of gloo lets go of a collective's tensors a little after the collective has ended.
    # When the process ends in between, torch 2.13 aborts: "terminate called without an active
    # exception".
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
