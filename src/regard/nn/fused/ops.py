"""Backward passes written by hand, for eager mode.

Autograd replays a formula operation by operation, and on a CPU each one is a pass over memory. These formulas are on
every layer's path and have a shorter backward than autograd's. Under a compiler the plain formulas are used: it
fuses them itself. tests/nn/test_byhand.py holds both to the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.nn.linear import product, product_with


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)² (So et al. 2021)."""
    return F.relu(x).square() if torch.compiler.is_compiling() else _ReLUSquared.apply(x)


class _ReLUSquared(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (grad * positive).mul_(2)


def squared_network(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """relu_squared(x Uᵀ) Dᵀ as one step: the hidden layer is overwritten in place instead of copied."""
    return _SquaredNetwork.apply(x, up, down)


class _SquaredNetwork(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        positive = product(x, up, after="relu")
        hidden = positive * positive
        ctx.save_for_backward(x, up, down, positive, hidden)
        return product(hidden, down)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, up, down, positive, hidden = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        for_hidden = product_with(positive.flatten(0, -2), "mul", flat * 2, down.t())  # d h² = 2 h dh
        for_x = product(for_hidden, up.t()).view(x.shape)
        return for_x, for_hidden.t() @ x.flatten(0, -2), flat.t() @ hidden.flatten(0, -2)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / √(mean x² + eps) · gain over the last axis; 16-bit inputs are left to PyTorch, which sums them in float32."""
    if torch.compiler.is_compiling() or x.dtype not in (torch.float32, torch.float64) or x.is_cuda:
        return F.rms_norm(x, gain.shape, gain.to(x.dtype), eps)  # one type: the fused kernel wants it
    return _RMSNorm.apply(x, gain, eps)


class _RMSNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        shrink = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # [..., 1]
        unit = x * shrink
        ctx.save_for_backward(unit, shrink, gain)
        return unit * gain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, shrink, gain = ctx.saved_tensors
        along = grad * unit
        for_gain = along.flatten(0, -2).sum(0)
        mean = (along @ gain).div_(unit.shape[-1]).unsqueeze(-1)
        return (grad * gain).addcmul_(unit, mean, value=-1).mul_(shrink), for_gain, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i+D/2}) by its angle; cos and sin [..., D/2] broadcast with x [..., D]."""
    if torch.compiler.is_compiling():
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return _Rotate.apply(x, cos, sin)


class _Rotate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, -sin), None, None  # the transpose of a rotation turns back


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty_like(x)
    (a, b), (c, d) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
    torch.mul(a, cos, out=c).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=d).addcmul_(a, sin)
    return out
