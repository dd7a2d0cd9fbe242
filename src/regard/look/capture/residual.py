"""The residual stream: the input of the first block of a model and the output of each, recorded or changed by hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.base import Model

Change = Callable[[int, Tensor], Tensor]


@contextmanager
def along(model: Model, change: Change) -> Iterator[None]:
    """In each forward pass, replace the residual stream x [B, N, C] of each layer by ``change(layer, x)``.

    Layer 0 is the input of the first block, layer i the output of the i-th, counting repetitions of a block. The two
    streams of reversible blocks are concatenated, [B, N, 2C]; `merged` returns what the last norm reads.
    """
    blocks = model.residual_blocks()
    if not blocks:
        raise UserError(f"a {type(model).__name__} declares no blocks with a residual stream, so it cannot be probed")
    done = 0

    def before(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal done
        if done % len(blocks):  # a repetition of the first block
            return None
        done = 0
        return _changed(inputs, lambda x: change(0, x))

    def after(_: nn.Module, __: Any, out: Any) -> Any:
        nonlocal done
        done += 1
        return _changed(out, lambda x: change(done, x))

    with ExitStack() as hooks:
        hooks.callback(blocks[0].register_forward_pre_hook(before).remove)
        for block in dict.fromkeys(blocks):
            hooks.callback(block.register_forward_hook(after).remove)
        yield


def merged(model: Model, x: Tensor) -> Tensor:
    """The stream that the last norm reads: the mean of the two streams of reversible blocks, otherwise ``x``."""
    return x.unflatten(-1, (2, -1)).mean(-2) if x.shape[-1] == 2 * model.config.width else x


def _changed(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The inputs or outputs of a block with the stream changed; the rest (masks, a recurrent state) stays."""
    if isinstance(values, Tensor):
        return change(values)
    first, *rest = values
    if rest and isinstance(rest[0], Tensor) and rest[0].shape == first.shape:
        return (*change(torch.cat((first, rest[0]), -1)).chunk(2, -1), *rest[1:])
    return (change(first), *rest)
