"""Formulas with handwritten backward passes, for eager mode.

Autograd differentiates a formula operation by operation, and on a CPU each is a pass over memory. These formulas are in
every layer and have a shorter backward pass than autograd's. A compiler gets the plain formulas and fuses them itself.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.nn.feedforward import FeedForward, ReLUSquared
from regard.nn.fused.onednn import OneDNNLinear, product, product_with, suits, unmodified, weight_gradient
from regard.nn.linear import Linear
from regard.nn.norm import RMSNorm
from regard.nn.positions.grid import GridRotary
from regard.nn.positions.position import Rotary, RotaryRotation

STEPS = 2**16  # the share of dropped elements is a multiple of 1 / STEPS


class FusedReLUSquared(ReLUSquared):
    """max(x, 0)² (So et al. 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if torch.compiler.is_compiling() else _ReLUSquared.apply(x)


class FusedSquaredFeedForward(FeedForward):
    """A network with the squared ReLU and no biases as one autograd step, where oneDNN suits its products."""

    def forward(self, x: Tensor) -> Tensor:
        layers = unmodified(self.up, Linear, OneDNNLinear) and unmodified(self.down, Linear, OneDNNLinear)
        plain = isinstance(self.activation, ReLUSquared) and self.drop.p == 0
        if plain and layers and self.up.bias is None and suits(x, self.up.weight):
            return _SquaredNetwork.apply(x, self.up.weight, self.down.weight)
        return super().forward(x)


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


class _SquaredNetwork(Function):
    """relu_squared(x Uᵀ) Dᵀ."""

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
        return for_x, weight_gradient(for_hidden, x), weight_gradient(flat, hidden)


class FusedRMSNorm(RMSNorm):
    """x / √(mean x² + eps) · gain on a CPU; PyTorch's kernel is used on a GPU and for 16-bit inputs."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or x.dtype not in (torch.float32, torch.float64) or x.is_cuda:
            return super().forward(x)
        if x.numel() == x.shape[-1] and not torch.is_grad_enabled():  # decoding: fewer operations for one row
            length = torch.linalg.vector_norm(x).item()
            return (x * self.gain).mul_((length * length / x.shape[-1] + self.eps) ** -0.5)
        return _RMSNorm.apply(x, self.gain, self.eps)


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


class FusedRotation(RotaryRotation):
    """Writes the rotated halves into one tensor."""

    __slots__ = ()

    def apply(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().apply(x)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        return _Rotate.apply(x, cos, sin) if torch.is_grad_enabled() else _rotated(x, cos, sin)


class FusedRotary(Rotary):
    """``Rotary`` with ``FusedRotation``."""

    def rotation(self, phase: Tensor) -> FusedRotation:
        return FusedRotation(*super().rotation(phase))


class FusedGridRotary(GridRotary):
    """``GridRotary`` with ``FusedRotation``."""

    def rotation(self, phase: Tensor) -> FusedRotation:
        return FusedRotation(*super().rotation(phase))


class _Rotate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(grad, cos, -sin), None, None  # the transpose of a rotation is its inverse


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty_like(x)
    (a, b), (c, d) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
    torch.mul(a, cos, out=c).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=d).addcmul_(a, sin)
    return out


class FastDropout(nn.Dropout):
    """``nn.Dropout`` (Srivastava et al. 2014) with 16 random bits per element on a CPU.

    PyTorch draws one random number per element there, on one core: a tenth of a small model's step. Here one 64-bit
    draw gives four elements.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.p) or input.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(input)
        dropped = min(round(self.p * STEPS), STEPS - 1)
        draws = torch.empty(-(-input.numel() // 4), dtype=torch.int64, device=input.device)
        draws.random_(-(2**63), None)  # all 64 bits
        numbers = draws.view(torch.int16)[: input.numel()].view(input.shape)
        kept = numbers >= dropped - STEPS // 2
        return input * kept.to(input.dtype).mul_(STEPS / (STEPS - dropped))
