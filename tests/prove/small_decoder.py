"""A small sound decoder in plain PyTorch: rotary attention, a growing cache, `start` and `step`. Faults subclass it."""

import math
from collections.abc import Callable

import torch
from torch import nn

from regard.prove import ModelUnderTest


def rotate(x, position):
    """x [B, H, N, D], position [B|1, N]."""
    half = x.shape[-1] // 2
    rate = 100.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = position[:, None, :, None].to(x.dtype) * rate
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def project(self, x, position):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return rotate(q, position), rotate(k, position), v

    def merge(self, mixed):
        return self.out(mixed.transpose(1, 2).flatten(2))

    def mask(self, n, x):
        return torch.ones(n, n, dtype=torch.bool).tril()

    def mix(self, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v

    def forward(self, x, position):
        q, k, v = self.project(x, position)
        return self.merge(self.mix(q, k, v, self.mask(x.shape[1], x)))

    def step(self, x, position, cache):
        """One piece: `cache` is None or the earlier keys and values."""
        q, k, v = self.project(x, position)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        rows, keys = q.shape[2], k.shape[2]
        mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
        return self.merge(self.mix(q, k, v, mask)), (k, v)


class Layer(nn.Module):
    attention = Attention

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixer = self.attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, position):
        x = x + self.mixer(self.norm1(x), position)
        return x + self.mlp(self.norm2(x))

    def step(self, x, position, cache):
        mixed, cache = self.mixer.step(self.norm1(x), position, cache)
        x = x + mixed
        return x + self.mlp(self.norm2(x)), cache


class Tiny(nn.Module):
    layer = Layer

    def __init__(self, vocabulary=40, width=32, heads=4, layers=2, seed=0):
        torch.manual_seed(seed)
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(self.layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim > 1 and "embed" not in name:
                    parameter.mul_(2)  # every token has a clear effect on later ones

    def forward(self, tokens):
        position = torch.arange(tokens.shape[1])[None]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, position)
        return self.head(self.norm(x))

    # Decoding in pieces: the state is (tokens so far, one cache per layer).
    def start(self, batch, capacity=None, **settings):
        return 0, [None] * len(self.layers)

    @torch.no_grad()
    def step(self, tokens, state, *rest, **settings):
        used, caches = state
        position = used + torch.arange(tokens.shape[1])[None]
        x, after = self.embed(tokens), []
        for layer, cache in zip(self.layers, caches, strict=True):
            assert isinstance(layer, Layer)
            x, kept = layer.step(x, position, cache)
            after.append(kept)
        return self.head(self.norm(x)), (used + tokens.shape[1], after)


class Entries(dict[str, tuple[Callable[[], ModelUnderTest], str]]):
    """What builds a model, and the claims that must fail for it, by name."""

    def __call__(self, claims=""):
        def add(make):
            self[make.__name__] = (make, claims)
            return make

        return add


def bare(model, vocabulary=40, length=24, **more):
    """A model of another library: only its forward pass is known."""
    return ModelUnderTest(model, vocabulary=vocabulary, length=length, **more)


def with_attention(kind):
    """The decoder with another attention."""
    return type("Model", (Tiny,), {"layer": type("ItsLayer", (Layer,), {"attention": kind})})


def randomize(model, std=0.15, seed=0):
    """Random weights for a model of the library, so that nothing is hidden by zero initialization."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * std)
    return model.eval()
