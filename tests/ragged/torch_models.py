"""Models for the tests of `tide plan --from-torch`."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, dtype=torch.bfloat16)
        self.down = nn.Linear(4 * width, width, bias=False, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(width)


class Model(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.layers = nn.ModuleList(Block(w) for w in widths)
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embed.weight  # tied: planned once
        self.embed.requires_grad_(False)


def build_model():
    print("this text must not disturb the answer")
    return Model([64, 64, 64, 32])


def build_number():
    return 7


def build_failing():
    raise RuntimeError("the model cannot be built today")
