"""What compiled FlexAttention costs, in a trace: Dynamo cannot compile it for tensors without numbers.

The stand-in is one operation forward and one backward, which keeps what the kernel keeps, and whose FLOPs are those of
the blocks of keys that the kernel reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from regard.attention.backends.flex import BLOCK, Flex
from regard.attention.call import Call, Out
from regard.attention.tiling.regroup import share


@torch.library.custom_op("regard_plan::visible", mutates_args=())
def visible(q: Tensor, k: Tensor, v: Tensor, read: float) -> tuple[Tensor, Tensor]:
    """Values and log-sum-exp of the right shapes, with no numbers. ``read``: the share of the keys that is read."""
    return q.new_zeros(*q.shape[:3], v.shape[3]), q.new_zeros(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("regard_plan::visible_back", mutates_args=())
def visible_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, read: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the right shapes."""
    return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


visible.register_fake(lambda q, k, v, read: (q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3]).float()))
visible_back.register_fake(lambda grad, q, k, v, *_: (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *given, ctx.read = inputs
    ctx.save_for_backward(*given, *output)


def _back(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor, Tensor, None]:
    return *visible_back(grad, *ctx.saved_tensors, ctx.read), None


visible.register_autograd(_back, setup_context=_save)


def visible_flops(q: Tensor, k: Tensor, v: Tensor, read: float, **_: object) -> int:
    """Those of the keys that are read."""
    return round(read * sdpa_flop_count(q.shape, _keys(k, q), _keys(v, q)))


def visible_back_flops(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *given: Any, **_: object) -> int:
    """Those of the keys that are read; scores are computed again."""
    return round(given[-1] * sdpa_backward_flop_count(grad.shape, q.shape, _keys(k, q), _keys(v, q)))


def _keys(k: Tensor, q: Tensor) -> torch.Size:
    """Their shape if each head had its own."""
    return torch.Size((k.shape[0], q.shape[1], *k.shape[2:]))


@contextmanager
def counted() -> Iterator[None]:
    """Run the stand-in instead of the kernel."""
    kernel = Flex.run
    Flex.run = _run
    try:
        yield
    finally:
        Flex.run = kernel


def _run(self: Flex, call: Call) -> Out:
    keys = call.k.shape[2]  # a query reads whole blocks, of which the first and the last are visible in part
    read = min(1.0, share(call.plan.mask, keys) + BLOCK / keys)
    return Out(torch.ops.regard_plan.visible(call.q, call.k, call.v, read)[0])
