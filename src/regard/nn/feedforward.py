"""Feed-forward networks: what each token thinks by itself. The same as two 1x1 convolutions (tests/laws)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Choice, option
from regard.nn.fused.ops import relu_squared, squared_network
from regard.nn.linear import Linear, suits, untouched


class FeedForwardLayer(nn.Module):
    """Base class of feed-forward networks."""

    inactive_parameters: int = 0  # weights that one token does not use


class FeedForward(FeedForwardLayer):
    """down(activation(up(x))) (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, width: int, hidden: int, activation: Callable[[Tensor], Tensor], *, bias: bool = False):
        super().__init__()
        self.up = Linear(width, hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class SquaredFeedForward(FeedForward):
    """With the squared ReLU; without biases, in eager mode on a CPU, as one step with its own backward pass."""

    def __init__(self, width: int, hidden: int, *, bias: bool = False):
        super().__init__(width, hidden, relu_squared, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        plain = self.activation is relu_squared and untouched(self.up, Linear) and untouched(self.down, Linear)
        if plain and self.up.bias is None and suits(x, self.up.weight):
            return squared_network(x, self.up.weight, self.down.weight)
        return super().forward(x)


class GatedFeedForward(FeedForwardLayer):
    """down(activation(gate(x)) ⊙ up(x)), gate and up as one product (Shazeer 2020, eq. 6)."""

    def __init__(self, width: int, hidden: int, activation: Callable[[Tensor], Tensor], *, bias: bool = False):
        super().__init__()
        self.gate_up = Linear(width, 2 * hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)


def itself(x: Tensor) -> Tensor:
    """The activation that is none."""
    return x


#: Of each kind of network, its activation, and whether that gates a second product.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "relu": (F.relu, False),
    "gelu": (F.gelu, False),
    "relu2": (relu_squared, False),
    "swiglu": (F.silu, True),
    "geglu": (F.gelu, True),
    "reglu": (F.relu, True),
    "glu": (torch.sigmoid, True),
    "bilinear": (itself, True),
}


def hidden_width(ratio: float, width: int, gated: bool) -> int:
    """The ratio, rounded; that of gated networks is a broken number, and rounded up to a multiple of 8."""
    return -(-round(ratio * width) // 8) * 8 if gated else round(ratio * width)


@dataclass(frozen=True)
class FeedForwardConfig(Choice):
    """Which feed-forward network a block has."""

    ratio: float = option(4.0, "hidden width over the model's width")

    def build(self, width: int, *, bias: bool) -> nn.Module:
        raise NotImplementedError


@dataclass(frozen=True)
class ReLUConfig(FeedForwardConfig, kind="relu"):
    """max(x, 0), as in the original Transformer."""

    def build(self, width: int, *, bias: bool) -> nn.Module:
        return FeedForward(width, round(self.ratio * width), F.relu, bias=bias)


@dataclass(frozen=True)
class GELUConfig(FeedForwardConfig, kind="gelu"):
    """x Φ(x), as in GPT-2 and BERT."""

    def build(self, width: int, *, bias: bool) -> nn.Module:
        return FeedForward(width, round(self.ratio * width), F.gelu, bias=bias)


@dataclass(frozen=True)
class ReLUSquaredConfig(FeedForwardConfig, kind="relu2"):
    """max(x, 0)²: cheap and good."""

    def build(self, width: int, *, bias: bool) -> nn.Module:
        return SquaredFeedForward(width, round(self.ratio * width), bias=bias)


@dataclass(frozen=True)
class GatedConfig(FeedForwardConfig):
    """Base of the gated kinds, one activation each."""

    ratio: float = option(8 / 3, "hidden width over the model's width, rounded up to a multiple of 8")

    def build(self, width: int, *, bias: bool) -> nn.Module:
        activation, _ = ACTIVATIONS[self.kind]
        return GatedFeedForward(width, hidden_width(self.ratio, width, gated=True), activation, bias=bias)


@dataclass(frozen=True)
class SwiGLUConfig(GatedConfig, kind="swiglu"):
    """A gated network with SiLU, as in Llama."""


@dataclass(frozen=True)
class GEGLUConfig(GatedConfig, kind="geglu"):
    """A gated network with GELU (Shazeer 2020, eq. 6), as in T5 1.1 and Gemma."""


@dataclass(frozen=True)
class ReGLUConfig(GatedConfig, kind="reglu"):
    """A gated network with ReLU (Shazeer 2020, eq. 6)."""


@dataclass(frozen=True)
class GLUConfig(GatedConfig, kind="glu"):
    """A gated network with the logistic function (Dauphin et al. 2017)."""


@dataclass(frozen=True)
class BilinearConfig(GatedConfig, kind="bilinear"):
    """A gated network without an activation: the product of two linear maps (Shazeer 2020, eq. 5)."""
