"""Models of the GPU suites: layers of known shapes between random inputs and a mean of squares.

Built on the meta device and filled on the GPU, shard by shard, so that no rank ever holds a whole
model. Weights are random but the same in every run; what they compute means nothing.
"""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from train_llama import Attention, Block, RMSNorm, rotary

MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
BF16 = MixedPrecisionPolicy(reduce_dtype=torch.float32)


@dataclasses.dataclass(frozen=True)
class Shape:
    dim: int
    heads: int
    kv_heads: int
    hidden: int
    experts: int = 0
    active: int = 0    # experts of a token
    head_dim: int = 0  # where it is not dim / heads


SHAPES = {
    "tiny": Shape(64, 4, 2, 176),
    "tiny_moe": Shape(64, 4, 2, 32, experts=8, active=2, head_dim=32),
    "small": Shape(1024, 16, 4, 2816),
    "llama_8b": Shape(4096, 32, 8, 14336),    # Llama-3.1-8B
    "llama_70b": Shape(8192, 64, 8, 28672),   # Llama-3.1-70B
    "qwen3_30b_a3b": Shape(2048, 32, 4, 768, experts=128, active=8, head_dim=128),
}


class FusedExperts(nn.Module):
    """All experts in two parameters. Every expert takes the tokens that want it most, equally
    many: the work of a balanced layer, in shapes that do not depend on the data."""

    def __init__(self, shape):
        super().__init__()
        self.active = shape.active
        self.router = nn.Linear(shape.dim, shape.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(shape.experts, shape.dim, 2 * shape.hidden))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.hidden, shape.dim))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).float().softmax(-1).t()  # (experts, tokens)
        each = max(1, tokens.shape[0] * self.active // scores.shape[0])
        weights, chosen = scores.topk(each, dim=1)
        gate, up = torch.bmm(tokens[chosen], self.gate_up).chunk(2, dim=-1)
        out = torch.bmm(F.silu(gate) * up, self.down) * weights.unsqueeze(-1).to(x.dtype)
        return torch.zeros_like(tokens).index_add(0, chosen.flatten(), out.flatten(0, 1)).view_as(x)


class MoeBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.attention_norm, self.mlp_norm = RMSNorm(shape.dim), RMSNorm(shape.dim)
        self.attention = Attention(width, shape.heads, shape.kv_heads)
        for name, sizes in (("wq", (shape.dim, width)), ("wk", (shape.dim, kv)),
                            ("wv", (shape.dim, kv)), ("wo", (width, shape.dim))):
            setattr(self.attention, name, nn.Linear(*sizes, bias=False))
        self.experts = FusedExperts(shape)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.experts(self.mlp_norm(x))


class Layers(nn.Module):
    """(batch, seq, dim) through `layers` layers and a norm."""

    def __init__(self, shape, layers):
        super().__init__()
        self.head_dim = shape.head_dim or shape.dim // shape.heads
        self.layers = nn.ModuleList(
            MoeBlock(shape) if shape.experts
            else Block(shape.dim, shape.heads, shape.kv_heads, shape.hidden)
            for _ in range(layers))
        self.norm = RMSNorm(shape.dim)

    def forward(self, x):
        cos, sin = rotary(x.shape[1], self.head_dim, x.device)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


def parameters_of_layer(name):
    """Elements."""
    with torch.device("meta"):
        return sum(p.numel() for p in Layers(SHAPES[name], 1).layers[0].parameters())


def build(name, layers, mesh, device, mixed=False):
    """Sharded, one group a layer and one for the norm. Parameters bf16, or fp32 with bf16 compute
    where `mixed`; gradients are summed in fp32."""
    with torch.device("meta"):
        model = Layers(SHAPES[name], layers)
        if not mixed:
            model = model.bfloat16()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=MIXED if mixed else BF16)
    fully_shard(model, mesh=mesh, mp_policy=MIXED if mixed else BF16)
    model.to_empty(device=device)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter.to_local(), std=0.02)
            else:
                nn.init.ones_(parameter.to_local())
    return model


def batch(name, seq, device, rank):
    """(1, seq, dim), bf16."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(1, seq, SHAPES[name].dim, generator=generator).to(device, torch.bfloat16)


def step(model, optimizer, x):
    model(x).float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
