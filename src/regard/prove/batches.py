"""Batches of a size that claims test, and some of their rows."""

from collections.abc import Iterator
from typing import TypeVar

from torch import Tensor

from regard.attention import Packed, Padded, Slots
from regard.data import Data, PairBatch, TextBatch

ROWS = 16
LOWEST = {"inputs": 0, "source": 0, "targets": -1}  # the lowest valid token of each tensor
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


def out_of_range(batch: Batch, vocabulary: int) -> Iterator[tuple[str, list[int], int]]:
    """Of each tensor with a token outside the vocabulary: its name, the token's place [row, position], the token."""
    for name, tokens in batch._asdict().items():
        if name in LOWEST and tokens.numel():
            least, most = (int(edge) for edge in tokens.aminmax())
            if least < LOWEST[name] or most >= vocabulary:
                wrong = most if most >= vocabulary else least
                yield name, (tokens == wrong).nonzero()[0].tolist(), wrong
