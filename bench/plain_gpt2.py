"""A plain GPT-2-style model, written out as an able person would in an afternoon: the yardstick of `bench/`.

The architecture is nanoGPT's: learned positions, pre-norm blocks with LayerNorm, one fused projection for queries, keys
and values, causal `scaled_dot_product_attention`, a GELU network four times as wide, and a head that shares its weight
with the token table. No trick of `regard` is used here, and none is held back that PyTorch offers by default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    """The size every contender of one benchmark is built at."""

    layers: int
    heads: int
    width: int
    context: int
    vocabulary: int
    batch: int
    bias: bool = True

    @property
    def tokens(self) -> int:
        """Tokens in one training step."""
        return self.batch * self.context


class Norm(nn.Module):
    """LayerNorm whose bias can be left out."""

    def __init__(self, width: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, bias=sizes.bias)
        self.out = nn.Linear(sizes.width, sizes.width, bias=sizes.bias)

    def forward(self, x: Tensor) -> Tensor:  # [B, N, C] -> [B, N, C]
        batch, length, width = x.shape
        split = [part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, -1)]
        mixed = F.scaled_dot_product_attention(*split, is_causal=True)  # [B, H, N, D]
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))


class FeedForward(nn.Module):
    """Up to four times the width, GELU, and down again."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.up = nn.Linear(sizes.width, 4 * sizes.width, bias=sizes.bias)
        self.down = nn.Linear(4 * sizes.width, sizes.width, bias=sizes.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Attention, then the network, each behind a norm and added to the stream."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.norm1 = Norm(sizes.width, sizes.bias)
        self.attention = Attention(sizes)
        self.norm2 = Norm(sizes.width, sizes.bias)
        self.feedforward = FeedForward(sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feedforward(self.norm2(x))


class PlainGPT2(nn.Module):
    """Token ids [B, N] and targets [B, N] to the mean cross entropy."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.token = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width, sizes.bias)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.head.weight = self.token.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # GPT-2 shrinks what is written into the stream by the number of writes.
                writes = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * sizes.layers) if writes else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
