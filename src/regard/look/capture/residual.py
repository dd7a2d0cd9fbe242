"""The residual stream: what goes into the first block of a model and comes out of each, noted or changed by hooks.

Hooks are on whole blocks, so that nothing inside a block is done another way than in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError

Change = Callable[[int, Tensor], Tensor]


def stack(model: Any) -> list[nn.Module]:
    """The blocks of a language model, or of a Transformer's decoder, in order."""
    decoder = getattr(model, "decoder", None)
    found = decoder if isinstance(decoder, nn.ModuleList) else getattr(model, "blocks", None)
    if found is None:
        raise UserError(f"a {type(model).__name__} has no blocks with a residual stream, so it cannot be probed so")
    return list(found)


@contextmanager
def along(model: Any, change: Change) -> Iterator[None]:
    """Each pass calls ``change(layer, x [B, N, C])`` and goes on with what it gives.

    Layer 0 is what goes into the first block, layer i what comes out of the i-th, also where blocks are repeated. The
    two streams of reversible blocks come side by side, [B, N, 2C]: `merged` gives what a head would see of them.
    """
    passed = 0

    def before(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal passed
        passed = 0
        return _changed(inputs, lambda x: change(0, x))

    def after(_: nn.Module, __: Any, out: Any) -> Any:
        nonlocal passed
        passed += 1
        return _changed(out, lambda x: change(passed, x))

    blocks = stack(model)
    with ExitStack() as hooks:
        first = blocks[0].register_forward_pre_hook(_once(before, lambda: passed % _count(model, blocks)))
        hooks.callback(first.remove)
        for block in blocks:
            hooks.callback(block.register_forward_hook(after).remove)
        yield


def _count(model: Any, blocks: list[nn.Module]) -> int:
    """How many blocks a pass goes through."""
    return len(blocks) * getattr(model.config, "repeat", 1)


def _once(hook: Callable[..., Any], done: Callable[[], int]) -> Callable[..., Any]:
    """A hook for the beginning of a pass: a repeated block is entered more often."""
    return lambda *given: hook(*given) if done() == 0 else None


def merged(model: Any, x: Tensor) -> Tensor:
    """A stream as the last norm gets it: of two the mean."""
    return x.unflatten(-1, (2, -1)).mean(-2) if x.shape[-1] == 2 * model.config.width else x


def _changed(given: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """What a block is given or gives, with its stream changed; the rest (masks, a recurrent state) stays as it is."""
    if isinstance(given, Tensor):
        return change(given)
    first, *rest = given
    if rest and isinstance(rest[0], Tensor) and rest[0].shape == first.shape:
        return (*change(torch.cat((first, rest[0]), -1)).chunk(2, -1), *rest[1:])
    return (change(first), *rest)
