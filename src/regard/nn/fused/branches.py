"""The branches of a pre-norm block as one autograd step each, for eager float32 on a CPU.

A small model spends a tenth of its step between the operations: one autograd node and one pass over memory for every
norm, split, transpose and residual sum. Here a branch is one node, queries, keys and values lie in one tensor, and the
residual is added inside the product. The formulas are those of the layers (tests/nn/test_branches.py compares);
whoever watches a layer with a hook, or exchanges it for another, gets the layers themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.attention import Softmax
from regard.attention.backends.choose import BACKENDS
from regard.attention.backends.small_cpu import mix, mix_backward
from regard.nn.attention import AttentionContext, SelfAttention
from regard.nn.feedforward import SquaredFeedForward
from regard.nn.fused.ops import relu_squared
from regard.nn.linear import Linear, product, product_with, suits, untouched
from regard.nn.norm import LayerNorm
from regard.nn.positions.position import NoRotation

norm_backward = torch.ops.aten.native_layer_norm_backward


def attention_branch(x: Tensor, norm: nn.Module, attention: SelfAttention, context: AttentionContext) -> Tensor | None:
    """x + attention(norm(x)) in one step, or None where the layers themselves must do it."""
    if not (
        context.plan.backend == "short"
        and context.arrival is None
        and isinstance(context.turn, NoRotation)
        and attention.heads == attention.kv_heads
        and suits(x, attention.out.weight)
        and untouched(norm, LayerNorm)
        and untouched(attention, SelfAttention)
        and untouched(attention.norm_qk, nn.Identity)
        and untouched(attention.mechanism, Softmax)
        and attention.mechanism.backend in ("auto", "short")
        and untouched(attention.qkv, Linear)
        and untouched(attention.out, Linear)
    ):
        return None
    mechanism: Any = attention.mechanism
    call = mechanism.call(x, x, x, context.plan)
    offset, blank = context.plan.prepared
    if blank is not None or BACKENDS["short"].refuses(call):
        return None
    call = call._replace(q=x[..., : attention.head_width])  # the scale follows from a head's width
    qkv, out = attention.qkv, attention.out
    tensors = (norm.gain, norm.bias, qkv.weight, qkv.bias, out.weight, out.bias)
    return _AttentionBranch.apply(x, *tensors, offset, attention.heads, call.factor / call.temperature, norm.eps)


def feedforward_branch(x: Tensor, norm: nn.Module, feedforward: nn.Module) -> Tensor | None:
    """x + feedforward(norm(x)) in one step, or None where the layers themselves must do it."""
    if not (
        type(feedforward) is SquaredFeedForward
        and suits(x, feedforward.up.weight)
        and untouched(feedforward, SquaredFeedForward)
        and untouched(norm, LayerNorm)
        and feedforward.activation is relu_squared
        and feedforward.up.bias is None
        and untouched(feedforward.up, Linear)
        and untouched(feedforward.down, Linear)
    ):
        return None
    return _SquaredBranch.apply(x, norm.gain, norm.bias, feedforward.up.weight, feedforward.down.weight, norm.eps)


class _AttentionBranch(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # [B, N, C]
        gain: Tensor,
        shift: Tensor | None,
        in_weight: Tensor,  # [3C, C]
        in_bias: Tensor | None,
        out_weight: Tensor,  # [C, C]
        out_bias: Tensor | None,
        offset: Tensor | None,
        heads: int,
        scale: float,
        eps: float,
    ) -> Tensor:
        batch, length, width = x.shape
        normed, mean, inverse = torch.native_layer_norm(x, (width,), gain, shift, eps)
        split = product(normed, in_weight, in_bias).view(batch, length, 3, heads, -1)
        qkv = split.permute(2, 0, 3, 1, 4).reshape(3, batch * heads, length, -1)  # [3, BH, N, D]
        q, k, v = qkv.unbind(0)
        mixed, weights = mix(q, k, v, offset, scale)
        mixed = mixed.view(batch, heads, length, -1).transpose(1, 2).reshape(batch, length, width)
        ctx.save_for_backward(x, gain, shift, in_weight, out_weight, mean, inverse, normed, qkv, weights, mixed)
        ctx.heads, ctx.scale, ctx.biased = heads, scale, (in_bias is not None, out_bias is not None)
        return product_with(x, "add", mixed, out_weight, out_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, shift, in_weight, out_weight, mean, inverse, normed, qkv, weights, mixed = ctx.saved_tensors
        (batch, length, width), heads = x.shape, ctx.heads
        flat = grad.flatten(0, 1)
        for_out = flat.t() @ mixed.flatten(0, 1)
        for_mixed = product(flat, out_weight.t()).view(batch, length, heads, -1).transpose(1, 2)
        for_qkv = torch.empty_like(qkv)
        q, k, v = qkv.unbind(0)
        mix_backward(for_mixed.reshape(q.shape), q, k, v, weights, ctx.scale, for_qkv.unbind(0))
        joined = for_qkv.view(3, batch, heads, length, -1).permute(1, 3, 0, 2, 4).reshape(-1, 3 * width)
        for_in = joined.t() @ normed.flatten(0, 1)
        for_normed = product(joined, in_weight.t()).view(x.shape)
        wanted = (True, True, shift is not None)
        for_x, for_gain, for_shift = norm_backward(for_normed, x, (width,), mean, inverse, gain, shift, wanted)
        in_bias, out_bias = ctx.biased
        biases = joined.sum(0) if in_bias else None, flat.sum(0) if out_bias else None
        return for_x.add_(grad), for_gain, for_shift, for_in, biases[0], for_out, biases[1], None, None, None, None


class _SquaredBranch(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor, shift: Tensor | None, up: Tensor, down: Tensor, eps: float
    ) -> Tensor:
        normed, mean, inverse = torch.native_layer_norm(x, x.shape[-1:], gain, shift, eps)
        positive = product(normed, up, after="relu")
        hidden = positive * positive
        ctx.save_for_backward(x, gain, shift, up, down, mean, inverse, normed, positive, hidden)
        return product_with(x, "add", hidden, down)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, shift, up, down, mean, inverse, normed, positive, hidden = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        for_down = flat.t() @ hidden.flatten(0, -2)
        half = product_with(positive.flatten(0, -2), "mul", flat, down.t())  # of the hidden layer's: d h² = 2 h dh
        for_up = torch.addmm(up, half.t(), normed.flatten(0, -2), beta=0, alpha=2)
        for_normed = product(half, up.t()).view(x.shape)
        wanted = (True, True, shift is not None)
        for_x, for_gain, for_shift = norm_backward(for_normed, x, x.shape[-1:], mean, inverse, gain, shift, wanted)
        shifted = None if for_shift is None else for_shift.mul_(2)
        return torch.add(grad, for_x, alpha=2), for_gain.mul_(2), shifted, for_up, for_down, None
