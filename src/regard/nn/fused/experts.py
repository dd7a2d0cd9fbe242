"""The networks of all experts as one autograd step, for eager mode.

Each group of rows passes through its whole network before the next group, so that its hidden layer stays in the CPU's
cache; autograd would store every step of every expert, and copy halves of gated hidden layers back and forth.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.nn.experts.grouped import groups, has_kernel
from regard.nn.experts.moe import CapacityExperts, ExpertWeights, MixtureOfExperts
from regard.nn.feedforward import gelu_tanh, identity, relu_squared
from regard.nn.fused.onednn import product, suits

aten = torch.ops.aten
Activation = Callable[[Tensor], Tensor]
#: The gradient of each activation: from the gradient of its output and its input x.
SLOPES: dict[Activation, Callable[[Tensor, Tensor], Tensor]] = {
    F.relu: lambda grad, x: aten.threshold_backward(grad, x, 0),
    F.gelu: aten.gelu_backward,
    gelu_tanh: partial(aten.gelu_backward, approximate="tanh"),
    F.silu: aten.silu_backward,
    torch.sigmoid: lambda grad, x: aten.sigmoid_backward(grad, x.sigmoid()),
    relu_squared: lambda grad, x: (grad * F.relu(x)).mul_(2),
    identity: lambda grad, x: grad,
}


class _Networks(Function):
    """Rows x [R, C], of which group e ends at ends[e], through the network of their group: [R, C].

    Weights are up [E, O, C] and down [E, C, H] with biases [E, O] and [E, C] or None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor,
        down: Tensor,
        up_bias: Tensor | None,
        down_bias: Tensor | None,
        ends: list[int],
        activation: Activation,
        gated: bool,
    ) -> Tensor:
        outputs, kept = None if len(ends) == 1 else torch.empty_like(x), []
        for number, begin, end in groups(ends):
            one_up, one_down = (None if bias is None else bias[number] for bias in (up_bias, down_bias))
            hidden = _times(x[begin:end], up[number], one_up, len(ends) == 1)
            if gated:
                gate, value = hidden.chunk(2, dim=-1)
                active = activation(gate).mul_(value) if activation is not identity else gate * value
            else:
                active = activation(hidden).to(hidden.dtype)  # autocast may square in float32, as in ``_activate``
            if outputs is None:
                outputs = _times(active, down[number], one_down, True)
            else:
                torch.mm(active, down[number].t(), out=outputs[begin:end])
                if one_down is not None:
                    outputs[begin:end] += one_down
            kept += [hidden, active]
        ctx.save_for_backward(x, up, down, *kept)
        ctx.ends, ctx.activation, ctx.gated = ends, activation, gated
        ctx.biased = up_bias is not None
        return torch.empty_like(x) if outputs is None else outputs  # there are no rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, up, down, *kept = ctx.saved_tensors
        slope, activation = SLOPES[ctx.activation], ctx.activation
        whole = len(kept) == 2 * len(ctx.ends)  # every expert has rows
        for_up, for_down = (torch.empty_like(w) if whole else torch.zeros_like(w) for w in (up, down))
        biases = [w.new_zeros(w.shape[:2]) if ctx.biased else None for w in (up, down)]
        for_x, left = torch.empty_like(x), iter(kept)
        for number, begin, end in groups(ctx.ends):
            hidden, active, back = next(left), next(left), grad[begin:end]
            torch.mm(back.t(), active, out=for_down[number])
            for_active = back @ down[number]
            if ctx.gated:
                for_hidden = torch.empty_like(hidden)
                (gate, value), (for_gate, for_value) = hidden.chunk(2, dim=-1), for_hidden.chunk(2, dim=-1)
                torch.mul(for_active, activation(gate), out=for_value)
                for_gate.copy_(slope(for_active.mul_(value), gate))  # half of each row
            else:
                for_hidden = slope(for_active, hidden)
            torch.mm(for_hidden.t(), x[begin:end], out=for_up[number])
            torch.mm(for_hidden, up[number], out=for_x[begin:end])
            for bias, of in zip(biases, (for_hidden, back), strict=True):
                if bias is not None:
                    torch.sum(of, 0, out=bias[number])
        return for_x, for_up, for_down, *biases, None, None, None


def _times(x: Tensor, weight: Tensor, bias: Tensor | None, alone: bool) -> Tensor:
    """x Wᵀ + b; ``alone``: for all rows, as a dense layer.

    Groups have other sizes in every step, and oneDNN compiles a kernel for each size: 1.4 ms, of which 0.6 are work.
    """
    return product(x, weight, bias) if alone and suits(x, weight) else F.linear(x, weight, bias)


class FusedExperts(MixtureOfExperts):
    """A mixture of experts whose networks are one autograd step in eager mode, where no grouped kernel exists."""

    def _networks(self, rows: Tensor, ends: Tensor | None, weights: ExpertWeights) -> Tensor:
        kernel = has_kernel(rows, weights[0]) and has_kernel(rows, weights[1])
        if torch.compiler.is_compiling() or kernel or self.drop.p:
            return super()._networks(rows, ends, weights)
        lasts = [len(rows)] if ends is None else ends.tolist()
        return _Networks.apply(rows, *weights, lasts, self.activation, self.gated)


class FusedCapacityExperts(FusedExperts, CapacityExperts):
    """``CapacityExperts`` in evaluation, where no token is dropped."""
