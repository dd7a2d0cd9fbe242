"""Feed-forward networks, applied to each token by itself."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Choice, option
from regard.nn.linear import Linear

Activation = Callable[[Tensor], Tensor]


class FeedForwardLayer(nn.Module):
    """Base class of feed-forward networks, [..., C] to [..., C]."""

    inactive_parameters: int = 0  # weights that one token does not use
    down: Linear  # the last matrix of the residual branch

    def scale_residual(self, scale: float) -> None:
        """Scale the weights that end the residual branch, at initialization."""
        self.down.weight.mul_(scale)


class FeedForward(FeedForwardLayer):
    """down(activation(up(x))) (Vaswani et al. 2017, eq. 2), with dropout on the hidden layer."""

    def __init__(self, width: int, hidden: int, activation: Activation, *, bias: bool = False, dropout: float = 0.0):
        super().__init__()
        self.up = Linear(width, hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)
        self.activation = activation
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.drop(self.activation(self.up(x))))


class GatedFeedForward(FeedForwardLayer):
    """down(activation(gate(x)) ⊙ up(x)), gate and up as one product (Shazeer 2020, eq. 6)."""

    def __init__(self, width: int, hidden: int, activation: Activation, *, bias: bool = False, dropout: float = 0.0):
        super().__init__()
        self.gate_up = Linear(width, 2 * hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)
        self.activation = activation
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.drop(self.activation(gate) * up))


class NoFeedForward(FeedForwardLayer):
    """Adds nothing to the residual stream."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def scale_residual(self, scale: float) -> None:
        """There are no weights."""


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)² (So et al. 2021)."""
    return F.relu(x).square()


class ReLUSquared(nn.Module):
    """``relu_squared`` as a module, which a fast path may replace."""

    def forward(self, x: Tensor) -> Tensor:
        return relu_squared(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """x Φ(x) with Φ approximated by a tanh (Hendrycks & Gimpel 2016, sec. 2)."""
    return F.gelu(x, approximate="tanh")


def identity(x: Tensor) -> Tensor:
    """The activation of bilinear networks."""
    return x


#: The activation of each kind of network, and whether it gates a second product.
ACTIVATIONS: dict[str, tuple[Activation, bool]] = {
    "relu": (F.relu, False),
    "gelu": (F.gelu, False),
    "gelu_tanh": (gelu_tanh, False),
    "silu": (F.silu, False),
    "relu2": (relu_squared, False),
    "swiglu": (F.silu, True),
    "geglu": (F.gelu, True),
    "geglu_tanh": (gelu_tanh, True),
    "reglu": (F.relu, True),
    "glu": (torch.sigmoid, True),
    "bilinear": (identity, True),
}


def hidden_width(ratio: float, width: int, gated: bool) -> int:
    """``ratio`` times ``width``, rounded; for gated networks a fraction is rounded up to a multiple of 8."""
    hidden = round(ratio * width)
    whole = abs(hidden - ratio * width) < 1e-6
    return hidden if whole or not gated else -(-hidden // 8) * 8


@dataclass(frozen=True)
class FeedForwardConfig(Choice):
    """Which feed-forward network a block has.

    A kind without further options needs no decorator.
    """

    ratio: float = option(4.0, "hidden width over the model's width")
    dropout: float = option(0.0, "dropout on the hidden layer", least=0, below=1)

    def hidden(self, width: int) -> int:
        """The hidden width."""
        return hidden_width(self.ratio, width, ACTIVATIONS[self.kind][1])

    def build(self, width: int, *, bias: bool) -> FeedForwardLayer:
        """The network with the activation of this kind."""
        activation, gated = ACTIVATIONS[self.kind]
        activation = ReLUSquared() if activation is relu_squared else activation
        network = GatedFeedForward if gated else FeedForward
        return network(width, self.hidden(width), activation, bias=bias, dropout=self.dropout)


class ReLUConfig(FeedForwardConfig, kind="relu"):
    """max(x, 0), as in the original Transformer."""


class GELUConfig(FeedForwardConfig, kind="gelu"):
    """x Φ(x), as in GPT-2 and BERT."""


class GELUTanhConfig(FeedForwardConfig, kind="gelu_tanh"):
    """GELU with Φ approximated by a tanh, as in the published weights of GPT-2."""


class SiLUConfig(FeedForwardConfig, kind="silu"):
    """x σ(x) without a gate, also called swish, as in Marian's translation models."""


class ReLUSquaredConfig(FeedForwardConfig, kind="relu2"):
    """max(x, 0)² (So et al. 2021)."""


@dataclass(frozen=True)
class GatedConfig(FeedForwardConfig):
    """Base class of the gated networks."""

    ratio: float = option(8 / 3, "hidden width over the model's width, rounded up to a multiple of 8")


class SwiGLUConfig(GatedConfig, kind="swiglu"):
    """A gated network with SiLU, as in Llama."""


class GEGLUConfig(GatedConfig, kind="geglu"):
    """A gated network with GELU (Shazeer 2020, eq. 6), as in T5 1.1 and Gemma."""


class GEGLUTanhConfig(GatedConfig, kind="geglu_tanh"):
    """``geglu`` with the tanh approximation, as in the published weights of T5 1.1 and Gemma."""


class ReGLUConfig(GatedConfig, kind="reglu"):
    """A gated network with ReLU (Shazeer 2020, eq. 6)."""


class GLUConfig(GatedConfig, kind="glu"):
    """A gated network with the logistic function (Dauphin et al. 2017)."""


class BilinearConfig(GatedConfig, kind="bilinear"):
    """A gated network without an activation: the product of two linear maps (Shazeer 2020, eq. 5)."""


class NoFeedForwardConfig(FeedForwardConfig, kind="none"):
    """No network: attention only (Elhage et al. 2021)."""

    def build(self, width: int, *, bias: bool) -> FeedForwardLayer:
        return NoFeedForward()
