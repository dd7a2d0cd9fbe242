"""Puts the fast paths into a model, from outside: the readable layers do not know of them.

A replaced module keeps its parameters, hooks and names; only its class changes, to a subclass whose ``forward`` takes
the fast path where it applies and calls the readable one elsewhere (under a compiler above all).
"""

from typing import NamedTuple

from torch import nn

from regard.nn.blocks.block import PreNorm
from regard.nn.experts.moe import CapacityExperts, MixtureOfExperts
from regard.nn.feedforward import FeedForward, ReLUSquared
from regard.nn.fused.decode_gemv import DecodePreNorm
from regard.nn.fused.experts import FusedCapacityExperts, FusedExperts
from regard.nn.fused.onednn import AVAILABLE, OneDNNLinear
from regard.nn.fused.ops import (
    FastDropout,
    FusedGridRotary,
    FusedReLUSquared,
    FusedRMSNorm,
    FusedRotary,
    FusedSquaredFeedForward,
)
from regard.nn.fused.quantized import FusedQuantizedLinear
from regard.nn.linear import Linear
from regard.nn.norm import LayerNorm, RMSNorm
from regard.nn.positions.grid import GridRotary
from regard.nn.positions.position import Rotary
from regard.nn.quantized import QuantizedLinear

FAST: dict[type[nn.Module], type[nn.Module]] = {
    Linear: OneDNNLinear,
    RMSNorm: FusedRMSNorm,
    ReLUSquared: FusedReLUSquared,
    FeedForward: FusedSquaredFeedForward,
    MixtureOfExperts: FusedExperts,
    CapacityExperts: FusedCapacityExperts,
    Rotary: FusedRotary,
    GridRotary: FusedGridRotary,
    nn.Dropout: FastDropout,
    PreNorm: DecodePreNorm,
    QuantizedLinear: FusedQuantizedLinear,
}


class FastPath(NamedTuple):
    """One module and its fast path, or the reason why it keeps the readable one."""

    name: str
    layer: str
    fast: str | None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.layer} -> {self.fast or f'unchanged ({self.reason})'}"


def install(model: nn.Module) -> list[FastPath]:
    """Replace the layers of ``model`` that have a fast path, in place; return what was replaced, and why not elsewhere.

    >>> model = nn.Sequential(RMSNorm(8), Linear(8, 8))
    >>> print(*install(model), sep="\\n")
    0: RMSNorm -> FusedRMSNorm
    1: Linear -> OneDNNLinear
    """
    replacements = []
    for name, module in model.named_modules():
        layer = type(module)
        if layer not in FAST:
            continue
        reason = _reason(module)
        if not reason:
            module.__class__ = FAST[layer]
        replacements.append(FastPath(name, layer.__name__, None if reason else FAST[layer].__name__, reason))
    return replacements


def _reason(module: nn.Module) -> str:
    """Why the fast path does not apply to this module; empty if it does."""
    if isinstance(module, Linear | FeedForward) and not AVAILABLE:
        return "this build of PyTorch has no oneDNN"
    if isinstance(module, FeedForward):
        if not isinstance(module.activation, ReLUSquared):
            return "only the squared ReLU has a fused network"
        if module.up.bias is not None:
            return "the fused network has no biases"
    if isinstance(module, PreNorm) and isinstance(module.norm_attention, LayerNorm):
        return "the one-row kernels contain RMSNorm only"
    return ""
