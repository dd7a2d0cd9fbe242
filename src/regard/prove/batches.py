"""Batches of a size that claims test, and some of their rows."""

from typing import TypeVar

from torch import Tensor

from regard.attention import Packed, Padded, Slots
from regard.data import Data, PairBatch, TextBatch

ROWS = 16
Batch = TextBatch | PairBatch
B = TypeVar("B", bound=Batch)


def batch_size(data: Data) -> int:
    """A batch size of about 16 rows, in the unit that the data counts in (rows or tokens)."""
    return ROWS * data.smallest_batch


def take_rows(batch: B, rows: slice) -> B:
    """Some rows of a batch: of every field, and of its slots, what has one entry per row."""
    count = len(batch.inputs)

    def taken(value: object) -> object:
        if isinstance(value, Padded | Packed | Slots):
            return type(value)._make(map(taken, value))
        return value[rows] if isinstance(value, Tensor | tuple) and len(value) == count else value

    return type(batch)._make(map(taken, batch))
