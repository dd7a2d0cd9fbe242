"""Batches of a size that claims test, and some of their rows."""

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor

from regard.attention import Packed, Padded, Slots
from regard.data import IGNORE_INDEX, Batch, Data, TextBatch
from regard.prove.model_under_test import ModelUnderTest

ROWS = 16
LOWEST = {"inputs": 0, "source": 0, "targets": -1}  # the lowest valid token of each tensor
B = TypeVar("B", bound=Batch)


def batch_size(data: Data) -> int:
    """A batch size of about 16 rows, in the unit that the data counts in (rows or tokens)."""
    return ROWS * data.smallest_batch


def random_batch(subject: ModelUnderTest) -> TextBatch:
    """Random tokens where no data was given; each row has another number of targets that count."""
    tokens = subject.tokens(8, subject.length + 1)
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    place = torch.arange(targets.shape[1], device=tokens.device)
    row = torch.arange(len(targets), device=tokens.device)[:, None]
    return TextBatch(inputs, targets.masked_fill(place < row % (subject.length - 1), IGNORE_INDEX))


def take_rows(batch: B, rows: slice | list[int]) -> B:
    """Some rows of a batch: of every field, and of its slots, what has one entry per row."""
    count = len(batch.inputs)
    numbers = range(count)[rows] if isinstance(rows, slice) else rows

    def taken(value: object) -> object:
        if isinstance(value, Padded | Packed | Slots):
            return type(value)._make(map(taken, value))
        if not isinstance(value, Tensor | tuple) or len(value) != count:
            return value
        return value[rows] if isinstance(value, Tensor) else tuple(value[row] for row in numbers)

    return type(batch)._make(map(taken, batch))


def has_tokens(batch: Batch) -> bool:
    """The inputs of a batch are token ids, and no arrays."""
    return not batch.inputs.is_floating_point()


def out_of_range(batch: Batch, vocabulary: int) -> Iterator[tuple[str, list[int], int]]:
    """Of each tensor with a token outside the vocabulary: its name, the token's place [row, position], the token."""
    if not has_tokens(batch):
        return
    for name, tokens in batch._asdict().items():
        if name in LOWEST and tokens.numel():
            least, most = (int(edge) for edge in tokens.aminmax())
            if least < LOWEST[name] or most >= vocabulary:
                wrong = most if most >= vocabulary else least
                yield name, (tokens == wrong).nonzero()[0].tolist(), wrong
