"""Batches as a judge needs them: cut by rows, thinned out, and as a model takes them."""

from __future__ import annotations

from typing import Any

import torch

from regard.attention import Packed, Padded, Range

ROWS = 16


def size_for(data: Any) -> int:
    """A size of batches: rows, or tokens where a batch is so many tokens."""
    return ROWS * data.smallest_batch


def rows_of(batch: Any) -> tuple[Any, ...]:
    """What a model is called with."""
    if hasattr(batch, "source"):
        return batch.inputs, batch.source, batch.source_lengths
    slots = getattr(batch, "slots", None)
    return (batch.inputs,) if slots is None else (batch.inputs, slots)


def halves(batch: Any) -> Any:
    """The same batch with every other target left out."""
    odd = torch.arange(batch.targets.shape[1]) % 2 == 1
    return batch._replace(targets=torch.where(odd, -1, batch.targets))


def cut(batch: Any, at: int) -> list[Any] | None:
    """Rows before ``at`` and from there on; None for slots that cannot be cut."""
    pieces = []
    for rows in (slice(0, at), slice(at, len(batch.inputs))):
        found: dict[str, Any] = {}
        for name in batch._fields:
            value = getattr(batch, name)
            if isinstance(value, torch.Tensor):
                found[name] = value[rows]
            elif isinstance(value, Padded):
                found[name] = value._replace(lengths=value.lengths[rows])
            elif isinstance(value, Packed):
                documents = None if value.documents is None else value.documents[rows]
                found[name] = Packed(value.segment[rows], value.phase[rows], documents)
            elif value is not None and not isinstance(value, Range):
                return None
        pieces.append(batch._replace(**found))
    return pieces
