"""Rows of a model's state: picked, repeated or replaced.

A state is a named tuple whose tensors all have the batch first, however deep they lie; the rest of it is the host's
and the same for all rows.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def pick(state: Any, rows: Tensor) -> Any:
    """A state of its own that holds these rows of ``state``, in this order; a row may come several times."""
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, tuple):
        picked = [pick(part, rows) for part in state]
        return type(state)(*picked) if hasattr(state, "_fields") else tuple(picked)
    return state


def put(state: Any, rows: Tensor, part: Any) -> None:
    """The rows of ``part`` take the place of these rows of ``state``, in place."""
    if isinstance(state, Tensor):
        state.index_copy_(0, rows, part)
    elif isinstance(state, tuple):
        for mine, other in zip(state, part, strict=True):
            put(mine, rows, other)
