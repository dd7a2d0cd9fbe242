"""The branches of a pre-norm block for one row on a GPU: four kernels and the attention, where layers take nine.

At batch 1 a decoding step waits for kernels rather than for memory. The formulas are those of the layers
(tests/nn/test_one_row.py compares); sums are kept in float32, where the layers round in between.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.attention import AttentionContext, SelfAttention
from regard.nn.feedforward import FeedForward, GatedFeedForward, SquaredFeedForward
from regard.nn.fused.ops import relu_squared
from regard.nn.linear import Linear, untouched
from regard.nn.norm import RMSNorm

try:
    from regard.nn.fused.decode_gemv_kernel import through as found
except ImportError:  # CPU builds of PyTorch and macOS come without triton
    found = None

through: Any = found


def suits(x: Tensor, *layers: nn.Module) -> bool:
    """Whether x is one row on a GPU, outside autograd, and each layer is exactly what it seems to be."""
    return (
        through is not None
        and x.is_cuda
        and x.numel() == x.shape[-1]
        and not torch.is_grad_enabled()
        and x.dtype != torch.float64
        and all(_plain(layer, x) for layer in layers)
    )


def attention_row(
    x: Tensor, norm: nn.Module, attention: SelfAttention, context: AttentionContext, memory: Any
) -> Tensor | None:
    """x + attention(norm(x)), or None where the layers themselves must do it."""
    qkv, out = attention.qkv, attention.out
    if type(norm) is not RMSNorm or type(attention) is not SelfAttention or not suits(x, norm, attention, qkv, out):
        return None
    heads = through(x, norm.gain, norm.eps, qkv.weight, qkv.bias, "", None)
    mixed = attention.mix(heads, context, memory)
    return through(mixed, None, 0.0, out.weight, out.bias, "", x)


def feedforward_row(x: Tensor, norm: nn.Module, feedforward: nn.Module) -> Tensor | None:
    """x + feedforward(norm(x)), or None where the layers themselves must do it."""
    if type(norm) is not RMSNorm:
        return None
    kind = type(feedforward)
    layers: Any = feedforward
    if kind is GatedFeedForward and layers.activation is F.silu:
        first, after = layers.gate_up, "swiglu"
    elif kind in (FeedForward, SquaredFeedForward) and layers.activation is relu_squared:
        first, after = layers.up, "relu2"
    else:
        return None
    down = layers.down
    if not suits(x, norm, feedforward, first, down):
        return None
    hidden = through(x, norm.gain, norm.eps, first.weight, first.bias, after, None)
    return through(hidden, None, 0.0, down.weight, down.bias, "", x)


def _plain(layer: nn.Module, x: Tensor) -> bool:
    """Not exchanged, not watched (a compiler looks at neither), weights of x's kind and in order."""
    if not torch.compiler.is_compiling() and not untouched(layer, type(layer)):
        return False
    if type(layer) is not Linear:
        return True
    weight = layer.weight
    return type(weight) in (Tensor, nn.Parameter) and weight.dtype == x.dtype and weight.is_contiguous()
