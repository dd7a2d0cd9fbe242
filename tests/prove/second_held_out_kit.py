"""Small sound parts in plain PyTorch, which the models of the second held-out list are made of."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.prove import ModelUnderTest


def waves(n: int, width: int, like: Tensor, start: int = 0) -> Tensor:
    """Sinusoidal positions [n, width] in the format of `like`."""
    place = torch.arange(n, device=like.device) + start
    rate = torch.exp(torch.arange(0, width, 2, device=like.device) * (-math.log(1e4) / width))
    angle = place[:, None] * rate
    return torch.cat((angle.sin(), angle.cos()), 1)[:, :width].to(like.dtype)


def causal(n: int, device) -> Tensor:
    """[n, n], True: may attend."""
    return torch.ones(n, n, dtype=torch.bool, device=device).tril()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv: int | None = None):
        super().__init__()
        self.h, self.g, self.d = heads, kv or heads, width // heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, self.g * self.d)
        self.v = nn.Linear(width, self.g * self.d)
        self.o = nn.Linear(width, width)

    def split(self, x: Tensor, h: int) -> Tensor:
        return x.unflatten(-1, (h, self.d)).transpose(1, 2)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        s = q @ k.transpose(-1, -2) / math.sqrt(self.d)
        if bias is not None:
            s = s + bias
        if mask is not None:
            s = s.masked_fill(~mask, float("-inf"))
        return s.softmax(-1) @ v

    def forward(self, x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.q(x), self.h), self.split(self.k(x), self.g), self.split(self.v(x), self.g)
        if self.g != self.h:
            k, v = (y.repeat_interleave(self.h // self.g, 1) for y in (k, v))
        return self.o(self.mix(q, k, v, mask, bias).transpose(1, 2).flatten(2))


class Mlp(nn.Sequential):
    def __init__(self, width: int, hidden: int | None = None):
        super().__init__(nn.Linear(width, hidden or 2 * width), nn.GELU(), nn.Linear(hidden or 2 * width, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, attention: nn.Module | None = None, mlp: nn.Module | None = None):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention or Attention(width, heads)
        self.mlp = mlp or Mlp(width)

    def forward(self, x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.n1(x), mask, bias)
        return x + self.mlp(self.n2(x))


#: What makes a block of a width and a number of heads.
Blocks = Callable[[int, int], nn.Module]


class Decoder(nn.Module):
    """A plain, sound causal Transformer; subclasses replace parts."""

    def __init__(self, vocabulary: int, width: int = 32, heads: int = 4, layers: int = 2, block: Blocks = Block):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def inputs(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return x + waves(tokens.shape[1], x.shape[2], x)

    def mask(self, tokens: Tensor) -> Tensor:
        return causal(tokens.shape[1], tokens.device)

    def bias(self, tokens: Tensor) -> Tensor | None:
        return None

    def forward(self, tokens: Tensor) -> Tensor:
        x, mask, bias = self.inputs(tokens), self.mask(tokens), self.bias(tokens)
        for block in self.blocks:
            x = block(x, mask, bias)
        return self.head(self.norm(x))


class Effects(dict[str, Callable[[], float]]):
    """What measures the effect of a fault, by the fault's name."""

    def __call__(self, fault):
        def add(measure):
            self[fault.__name__] = measure
            return measure

        return add


def other(tokens: Tensor, place: int, vocabulary: int) -> Tensor:
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % vocabulary
    return changed


def drawn(rows: int, length: int, vocabulary: int, seed: int = 1) -> Tensor:
    return torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def seeded(make, *arguments, seed: int = 11):
    torch.manual_seed(seed)
    return make(*arguments).eval()


def under_test(make, vocabulary: int, length: int, *arguments, **named) -> ModelUnderTest:
    """A sound model of which the forward pass alone is known."""
    return ModelUnderTest(seeded(make, vocabulary, *arguments, seed=12), vocabulary=vocabulary, length=length, **named)


@torch.no_grad()
def leak(model, tokens: Tensor, place: int, vocabulary: int) -> float:
    """How much the logits before `place` change with the token at `place`."""
    return float((model(tokens) - model(other(tokens, place, vocabulary)))[:, :place].abs().max())
