"""Grouped matrix products: rows sorted by expert, each group times its expert's matrix.

Rows are moved by gathers only, forward and backward, because every pair of a token and an expert has one index: no sum
depends on the order of execution, on a GPU either.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.attention.call import SavedTensors
from regard.nn.experts.routing import Order


def dispatch(x: Tensor, order: Order) -> Tensor:
    """Rows [T, C] to pairs [R, C], sorted by expert."""
    return _Dispatch.apply(x, order.token, order.place)


def collect(pairs: Tensor, gates: Tensor, order: Order) -> Tensor:
    """Sorted pairs [R, C] back to rows [T, C], each the sum of its experts' outputs times gates [T, A]."""
    return _Collect.apply(pairs, gates, *order[:3])


class _DispatchContext(SavedTensors):
    rows: int


class _Dispatch(Function):
    @staticmethod
    def forward(ctx: _DispatchContext, x: Tensor, token: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.rows = x.shape[0]
        return x.index_select(0, token)

    @staticmethod
    @once_differentiable
    def backward(ctx: _DispatchContext, grad: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        back = grad.index_select(0, place)
        return (back if len(place) == ctx.rows else back.unflatten(0, (ctx.rows, -1)).sum(1)), None, None


class _Collect(Function):
    @staticmethod
    def forward(ctx: SavedTensors, pairs: Tensor, gates: Tensor, token: Tensor, pair: Tensor, place: Tensor) -> Tensor:
        answers = pairs.index_select(0, place).view(*gates.shape, -1)  # [T, A, C]
        ctx.save_for_backward(answers, gates, token, pair)
        return (answers * gates[..., None]).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: SavedTensors, grad: Tensor) -> tuple[Tensor | None, ...]:
        answers, gates, token, pair = ctx.saved_tensors
        for_gates = (answers * grad[:, None]).sum(-1)
        for_pairs = grad.index_select(0, token) * gates.flatten().index_select(0, pair)[:, None]
        return for_pairs, for_gates, None, None, None


def grouped(x: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor) -> Tensor:
    """Rows x [R, C], of which group e ends at ends[e], each times its group's matrix of weight [E, O, C]: [R, O].

    Where PyTorch has no kernel for it, a loop over the groups, as a custom operator that a compiler does not trace.
    """
    native = has_kernel(x, weight)
    out = torch._grouped_mm(x, weight.mT, offs=ends.int()) if native else torch.ops.regard.grouped(x, weight, ends)
    return out if bias is None else out + _memberships(ends, len(x)).to(bias.dtype) @ bias


def has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether PyTorch's grouped kernel supports it, without host synchronization: bfloat16 on a newer GPU."""
    return (
        hasattr(torch, "_grouped_mm")
        and x.is_cuda
        and len(x) > 0  # PyTorch 2.11 cannot differentiate it otherwise
        and x.dtype == weight.dtype == torch.bfloat16
        and x.shape[-1] % 8 == weight.shape[-2] % 8 == 0  # rows are aligned to 16 bytes
        and torch.cuda.get_device_capability(x.device) >= (8, 0)
    )


def _memberships(ends: Tensor, rows: int) -> Tensor:
    """[R, E]: whether a row is in that group. A product sums in a fixed order, unlike the backward of a lookup."""
    begins = F.pad(ends[:-1], (1, 0))
    numbers = torch.arange(rows, device=ends.device)[:, None]
    return (numbers >= begins) & (numbers < ends)


def groups(ends: list[int]) -> list[tuple[int, int, int]]:
    """(number, begin, end) of each group that has rows."""
    return [(e, begin, end) for e, (begin, end) in enumerate(pairwise([0, *ends])) if end > begin]


@torch.library.custom_op("regard::grouped", mutates_args=())
def _op(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    out = x.new_empty(x.shape[0], weight.shape[1])
    for number, begin, end in groups(ends.tolist()):
        torch.mm(x[begin:end], weight[number].t(), out=out[begin:end])
    return out


@torch.library.custom_op("regard::grouped_backward", mutates_args=())
def _op_backward(grad: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    for_x, for_weight = torch.empty_like(x), torch.zeros_like(weight)  # an expert without rows gets zeros
    for number, begin, end in groups(ends.tolist()):
        torch.mm(grad[begin:end], weight[number], out=for_x[begin:end])
        torch.mm(grad[begin:end].t(), x[begin:end], out=for_weight[number])
    return for_x, for_weight


@_op.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@_op_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _save(ctx: SavedTensors, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: SavedTensors, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *torch.ops.regard.grouped_backward(grad.contiguous(), *ctx.saved_tensors), None


_op.register_autograd(_gradients, setup_context=_save)
