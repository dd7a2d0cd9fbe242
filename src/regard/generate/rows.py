"""Rows of a decoding state: select, replace and reorder them.

In a `State` and in the two parts of a `Seq2SeqState` every tensor, however deep, has the batch as its first axis.
Everything else in them is the same for all rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def select_rows(state: Any, rows: Tensor) -> Any:
    """A new state that holds copies of these rows, in this order; a row may appear several times."""
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, tuple):
        parts = [select_rows(part, rows) for part in state]
        return tuple(parts) if type(state) is tuple else type(state)(*parts)
    return state


def write_rows(state: Any, rows: Tensor, source: Any) -> None:
    """Overwrite these rows of ``state`` with the rows of ``source``, in place."""
    if isinstance(state, Tensor):
        state.index_copy_(0, rows, source)
    elif isinstance(state, tuple):
        for part, other in zip(state, source, strict=True):
            write_rows(part, rows, other)


def reorder_rows(state: Any, rows: Tensor, in_place: bool = False) -> Any:
    """The state whose row i is the old row ``rows[i]``; ``in_place`` keeps every tensor at its address."""
    if not rows.is_cpu and not in_place:
        return select_rows(state, rows)
    places = torch.arange(len(rows), device=rows.device)
    if rows.is_cpu:  # on a GPU the host would have to wait for the number of changed rows
        places = (rows != places).nonzero()[:, 0]
    if len(places):
        write_rows(state, places, select_rows(state, rows[places]))
    return state
