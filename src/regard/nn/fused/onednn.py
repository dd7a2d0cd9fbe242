"""Linear layers by oneDNN, which is faster than MKL on a CPU in eager float32.

(Measured on two AVX-512 cores of an AMD EPYC: 768 x 128 x 512 takes 450 µs against 505; one row through 768 x 2304, as
in decoding, 263 against 508, since only oneDNN divides it between the cores. PyTorch itself uses oneDNN for 16-bit
numbers only.)
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from regard.nn.linear import Linear

FEW_ROWS, SMALL = 64, 2**17  # fewer rows through a smaller matrix take tens of microseconds: the overhead dominates
MANY_PRODUCTS = 2**23  # a weight's gradient of fewer multiplications takes a fraction of a millisecond in MKL as well
AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class OneDNNLinear(Linear):
    """``Linear``, by oneDNN where it is available and faster."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        if suits(input, weight):
            if not torch.is_grad_enabled():
                return product(input, weight, self.bias)
            return _Product.apply(input, weight, self.bias)
        return F.linear(input, weight, self.bias)


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is available and faster for x Wᵀ."""
    return (
        AVAILABLE
        and type(x) is Tensor
        and type(weight) in (Tensor, nn.Parameter)  # tensor subclasses (quantized, sharded) implement F.linear only
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and (x.numel() >= FEW_ROWS * x.shape[-1] or weight.numel() >= SMALL)
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def unmodified(module: nn.Module, *kinds: type) -> bool:
    """Whether a module is exactly of one of these classes, without hooks and without a replaced ``forward``."""
    return type(module) in kinds and not (
        "forward" in module.__dict__
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _has_any_global_hook()
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, after: str = "none") -> Tensor:
    """x Wᵀ + b outside autograd; ``after`` may be "relu"."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, after, [], "").detach()  # else it counts as a view


def product_with(other: Tensor, how: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b combined with ``other`` ("add" or "mul") inside the product."""
    return torch.ops.mkldnn._linear_pointwise.binary(x, other, weight, bias, how).detach()


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """gradᵀ x, the gradient of W [O, I] in x Wᵀ, from grad [..., O] and x [..., I] that oneDNN suits."""
    grad, x = grad.flatten(0, -2), x.flatten(0, -2)
    if grad.numel() * x.shape[1] < MANY_PRODUCTS:
        return grad.t() @ x
    # oneDNN is faster with the shorter side first.
    return product(grad.t(), x.t()) if grad.shape[1] <= x.shape[1] else product(x.t(), grad.t()).t()


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        for_x = product(flat, weight.t()).view(x.shape) if ctx.needs_input_grad[0] else None
        for_weight = weight_gradient(flat, x) if ctx.needs_input_grad[1] else None
        return for_x, for_weight, flat.sum(0) if ctx.biased else None
