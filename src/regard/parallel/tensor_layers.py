"""The layers of tensor parallelism, and the two sums that its ranks exchange (Shoeybi et al. 2019, sec. 3, fig. 3).

A layer of a model becomes one of these by a change of its class: it keeps its parameters, hooks and names.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.autograd import Function
from torch.nn import functional as F

from regard.attention import Bias, Pairs
from regard.nn.fused.onednn import OneDNNLinear
from regard.nn.norm import RMSNorm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ColumnParallelLinear(OneDNNLinear):
    """Some rows of x Wᵀ + b: columns of the product. The gradient of x is summed over the ranks."""

    group: ProcessGroup | None

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(_Enter.apply(input, self.group))


class RowParallelLinear(OneDNNLinear):
    """x Wᵀ + b, where each rank has a part of x and the columns of W for it. Every rank adds b after the sum."""

    group: ProcessGroup | None

    def forward(self, input: Tensor) -> Tensor:
        output = _Leave.apply(F.linear(input, self.weight), self.group)
        return output if self.bias is None else output + self.bias.to(output.dtype)  # autocast: as the product


class SharedGainRMSNorm(RMSNorm):
    """RMSNorm of some of the heads, which share their gain with those of the other ranks: its gradient is summed."""

    group: ProcessGroup | None

    def forward(self, x: Tensor) -> Tensor:
        gain = _Enter.apply(self.gain, self.group)
        return F.rms_norm(x, gain.shape, gain.to(x.dtype), self.eps)


class LocalHeads(Bias):
    """What a bias without parameters inherits first: it gets the numbers that the heads have in the whole model."""

    first_head: int

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        return super().adjust(score, pairs._replace(head=pairs.head + self.first_head))


@cache
def with_local_heads(kind: Any) -> Any:
    """A kind of bias that inherits ``LocalHeads`` first."""
    return type(f"LocalHeads{kind.__name__}", (LocalHeads, kind), {})


class _Enter(Function):
    """x itself; its gradient is the sum over the ranks (f in fig. 3 of the paper)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum(grad, ctx.group), None


class _Leave(Function):
    """The sum over the ranks; its gradient is that of x on each of them (g in fig. 3)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _sum(x: Tensor, group: ProcessGroup | None) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    if group is not None:
        distributed.all_reduce(total, group=group)
    return total
