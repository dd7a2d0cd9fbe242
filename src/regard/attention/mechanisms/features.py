"""Feature maps φ of linear attention: the similarity of a query and a key is φ(q)·φ(k) instead of exp(q·k).

All but ``identity`` are nonnegative, so that the similarities can be normalized to weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

FeatureName = Literal["elu", "relu", "relu2", "softmax", "identity"]


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1 (Katharopoulos et al. 2020, eq. 7), as exp(min(x, 0)) + max(x, 0).

    This form keeps the digits of small values: elu(-20) + 1 is zero in float32, exp(-20) is not.
    """
    return _formula(x) if torch.compiler.is_compiling() else _EluPlusOne.apply(x)


def _formula(x: Tensor) -> Tensor:
    return x.clamp(max=0).exp() + F.relu(x)


class _EluPlusOne(Function):
    """The derivative is min(φ, 1): the backward pass needs the output only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clamp(max=0).exp_().add_(F.relu(x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return y.clamp(max=1).mul_(grad)


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)²: sharper than max(x, 0)."""
    return F.relu(x).square()


def softmax(x: Tensor) -> Tensor:
    """Softmax over the features (Shen et al. 2021, sec. 3.2): never overflows, never all zero."""
    return x.softmax(-1)


def identity(x: Tensor) -> Tensor:
    """q·k itself, which may be negative and therefore cannot be normalized."""
    return x


FEATURES: dict[FeatureName, Callable[[Tensor], Tensor]] = {
    "elu": elu_plus_one,
    "relu": F.relu,
    "relu2": relu_squared,
    "softmax": softmax,
    "identity": identity,
}
