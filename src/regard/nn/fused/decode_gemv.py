"""A pre-norm block for one row on a GPU: four products and two kernels of attention, instead of a dozen kernels.

At batch 1 a decoding step is bound by kernel launches, not by memory. Sums are accumulated in float32, where the layers
round in between.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.attention import AttentionContext, SelfAttention
from regard.nn.blocks.block import PreNorm
from regard.nn.feedforward import FeedForward, GatedFeedForward, ReLUSquared
from regard.nn.fused.decode_attention import mix_row
from regard.nn.fused.decode_cpu import mix_token
from regard.nn.fused.onednn import OneDNNLinear, unmodified
from regard.nn.fused.ops import FusedRMSNorm, FusedSquaredFeedForward
from regard.nn.linear import Linear
from regard.nn.lora import LowRankAdapter
from regard.nn.norm import RMSNorm
from regard.nn.quantized import Int8Config, QuantizedLinear

try:
    from regard.nn.fused.decode_gemv_kernel import through as _through
except ImportError:  # CPU builds of PyTorch and macOS come without triton
    _through = None

through: Any = _through
NORMS, LINEARS = (RMSNorm, FusedRMSNorm), (Linear, OneDNNLinear)


class DecodePreNorm(PreNorm):
    """``PreNorm`` with fused kernels for one row on a GPU, outside autograd."""

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        if x.numel() != x.shape[-1] or torch.is_grad_enabled() or self.training:
            return super().forward(x, context)
        if through is None or not x.is_cuda:  # as there, without dropout
            x = x + self._attention_on_cpu(self.norm_attention(x), context)
            if self.cross is not None:
                x = x + self.cross(self.norm_cross(x), context.cross)
            return x.add_(self.feedforward(self.norm_feedforward(x)))
        attended = attention_row(x, self.norm_attention, self.attention, context)
        x = x + self.attention(self.norm_attention(x), context) if attended is None else attended
        if self.cross is not None:
            x = x + self.cross(self.norm_cross(x), context.cross)
        output = feedforward_row(x, self.norm_feedforward, self.feedforward)
        return x + self.feedforward(self.norm_feedforward(x)) if output is None else output

    def _attention_on_cpu(self, x: Tensor, context: AttentionContext) -> Tensor:
        attention, compiling = self.attention, torch.compiler.is_compiling()
        if context.decode is None or compiling or x.is_cuda or not unmodified(attention, SelfAttention):
            return attention(x, context)
        qkv = attention.qkv(x)
        mixed = mix_token(attention, qkv, context)
        return attention.out(attention.mix(qkv, context) if mixed is None else mixed)


def attention_row(x: Tensor, norm: nn.Module, attention: SelfAttention, context: AttentionContext) -> Tensor | None:
    """x + attention(norm(x)), or None where the kernels do not support these layers."""
    if type(norm) not in NORMS or type(attention) is not SelfAttention:
        return None
    qkv, out = attention.qkv, attention.out
    if not suits(x, [norm, attention], [qkv, out]):
        return None
    return product(mix_row(attention, product(x, qkv, norm), context), out, other=x)


def feedforward_row(x: Tensor, norm: nn.Module, feedforward: nn.Module) -> Tensor | None:
    """x + feedforward(norm(x)), or None where the kernels do not support these layers."""
    kind, layers = type(feedforward), cast(Any, feedforward)
    if kind is GatedFeedForward and layers.activation is F.silu:
        first, after = layers.gate_up, "swiglu"
    elif kind in (FeedForward, FusedSquaredFeedForward) and isinstance(layers.activation, ReLUSquared):
        first, after = layers.up, "relu2"
    else:
        return None
    if type(norm) not in NORMS or not suits(x, [norm, feedforward], [first, layers.down]):
        return None
    return product(product(x, first, norm, after), layers.down, other=x)


def product(x: Tensor, layer: Any, norm: Any = None, after: str = "", other: Tensor | None = None) -> Tensor:
    """after(layer(norm(x))) + other, for one row."""
    gain, eps = (None, 0.0) if norm is None else (norm.gain, norm.eps)
    if isinstance(layer, QuantizedLinear):
        return through(x, gain, eps, layer.codes, layer.bias, after, other, layer.scale)
    return through(x, gain, eps, layer.weight, layer.bias, after, other)


def suits(x: Tensor, layers: Sequence[nn.Module], linears: Sequence[nn.Module]) -> bool:
    """Whether every layer is unmodified, and each matrix contiguous, of x's type or in 8 bits."""
    compiling = torch.compiler.is_compiling()  # a compiler ignores hooks
    return (
        x.dtype != torch.float64
        and all(compiling or unmodified(layer, type(layer)) for layer in (*layers, *linears))
        and all(_supported(layer, x) for layer in linears)
    )


def _supported(layer: Any, x: Tensor) -> bool:
    if isinstance(layer, LowRankAdapter):  # the kernels would leave it out
        return False
    if isinstance(layer, QuantizedLinear):
        return isinstance(layer.config, Int8Config) and layer.codes.is_contiguous()
    if type(layer) not in LINEARS:
        return False
    weight = layer.weight
    return type(weight) in (Tensor, nn.Parameter) and weight.dtype == x.dtype and weight.is_contiguous()
