"""Batches for the claims about data and loss: sizes, splits, and the arguments of a model."""

from __future__ import annotations

from typing import Any

import torch

from regard.attention import Packed, Padded, Range
from regard.data import Data, PairBatch, TextBatch

ROWS = 16
Batch = TextBatch | PairBatch


def batch_size(data: Data) -> int:
    """A batch size of about 16 rows, in the unit that the data counts in (rows or tokens)."""
    return ROWS * data.smallest_batch


def model_arguments(batch: Batch) -> tuple[Any, ...]:
    """The positional arguments of a model for this batch."""
    if isinstance(batch, PairBatch):
        return batch.inputs, batch.source, batch.source_lengths
    return (batch.inputs,) if batch.slots is None else (batch.inputs, batch.slots)


def every_other_target(batch: Batch) -> Batch:
    """The same batch with the targets at odd positions ignored."""
    odd = torch.arange(batch.targets.shape[1]) % 2 == 1
    return batch._replace(targets=torch.where(odd, -1, batch.targets))


def split_rows(batch: Batch, at: int) -> list[Batch] | None:
    """The rows before ``at`` and the others; None for slots that cannot be split."""
    parts = []
    for rows in (slice(0, at), slice(at, len(batch.inputs))):
        fields: dict[str, Any] = {}
        for name, value in batch._asdict().items():
            if isinstance(value, torch.Tensor):
                fields[name] = value[rows]
            elif isinstance(value, Padded):
                fields[name] = value._replace(lengths=value.lengths[rows])
            elif isinstance(value, Packed):
                documents = None if value.documents is None else value.documents[rows]
                fields[name] = Packed(value.segment[rows], value.phase[rows], documents)
            elif value is not None and not isinstance(value, Range):
                return None
        parts.append(batch._replace(**fields))
    return parts
