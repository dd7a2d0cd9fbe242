"""Examples of a run's data: as training gets them, as they are stored, and those of the validation part.

They are read once a session and are few, so that checks may compare each of them with all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data import (
    ArrayBatch,
    Data,
    ExampleData,
    ImageBatch,
    ImageTextBatch,
    LabeledBatch,
    LabeledData,
    PairBatch,
    TextBatch,
)

ROWS, NUMBERS = 2000, 2**22  # examples of each part, and numbers in their inputs, at most
READ = 8192  # examples of the validation part that are read, of which `ROWS` at equal distances are kept
Array = NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """Some examples of one part; a row is an array [M, ...] with the channels first, or the tokens of a text [N]."""

    rows: list[Array]
    targets: NDArray[np.int64]  # [R]: the class; -1: none
    batches: NDArray[np.int64]  # [R]: the number of the batch that a row comes from
    tags: list[Array]  # the targets of each token, if they are such

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, numbers: Iterable[int]) -> Sample:
        """The rows with these numbers."""
        chosen = list(numbers)
        tags = [self.tags[n] for n in chosen] if self.tags else []
        return Sample([self.rows[n] for n in chosen], self.targets[chosen], self.batches[chosen], tags)

    def thinned(self, most: int) -> Sample:
        """At most so many rows, at equal distances."""
        return self if len(self) <= most else self.pick(np.linspace(0, len(self) - 1, most).astype(int).tolist())

    @property
    def arrays(self) -> bool:
        """The inputs are numbers, and no tokens."""
        return bool(self.rows) and self.rows[0].dtype.kind == "f"

    @property
    def alike(self) -> bool:
        """Arrays of one shape."""
        return self.arrays and len({row.shape for row in self.rows}) == 1

    @cached_property
    def keys(self) -> list[bytes]:
        """The content of each row."""
        return [np.ascontiguousarray(row).tobytes() for row in self.rows]


class Examples:
    """The examples of a run. ``batch``: a training batch by its number; ``size``: that of a batch."""

    def __init__(self, data: Data[Any], batch: Callable[[int], Any], size: int):
        self.data, self._batch, self._size = data, batch, size
        self.labels: tuple[str, ...] = tuple(getattr(data, "labels", ()))

    @cached_property
    def trained(self) -> Sample:
        """Those of neighboring training batches, in their order."""
        return sample(self._batch(number) for number in count())

    @cached_property
    def stored(self) -> Sample:
        """Training examples without augmentation, at equal distances; those of batches if nothing else is known."""
        if isinstance(self.data, ExampleData):
            return sample(self._spread("train", self.data.count))
        if isinstance(self.data, LabeledData):
            inputs = self.data.train
            rows, targets = inputs.tokens, inputs.targets
            chosen = np.unique(np.linspace(0, inputs.count - 1, ROWS).astype(np.int64))
            tokens, wanted = (
                [part.tokens[start : start + size].astype(np.int64) for start, size in zip(*place, strict=True)]
                for part, place in ((part, (part.starts[chosen], part.counts[chosen])) for part in (rows, targets))
            )
            single = all(len(one) == 1 for one in wanted)
            classes = np.array([one[0] if single else -1 for one in wanted], np.int64)
            tagged = bool(self.labels) and all(len(a) == len(b) for a, b in zip(tokens, wanted, strict=True))
            return Sample(tokens, classes, np.zeros(len(tokens), np.int64), wanted if tagged and not single else [])
        return self.trained

    @cached_property
    def validation(self) -> Sample:
        """Those of the validation part, as an evaluation gets them."""
        data = self.data
        if isinstance(data, ExampleData) and (data.validation_count or 0) > READ:
            return sample(self._spread("validation", data.validation_count or 0))
        return sample(data.validation_batches(self._size), READ, 2 * NUMBERS).thinned(ROWS)

    def _spread(self, part: Any, total: int) -> Iterator[Any]:
        """Batches of examples of a part at equal distances in turn: each of them is spread over all of it."""
        assert isinstance(self.data, ExampleData)
        chosen = np.unique(np.linspace(0, total - 1, min(total, ROWS)).astype(np.int64))
        step = max(1, len(chosen) // 32)
        for start in range(step if len(chosen) else 0):
            yield self.data.part_batch(part, chosen[start::step])

    @property
    def classes(self) -> int:
        """The number of classes; 0: the targets are none."""
        return len(self.labels) if len(self.labels) > 1 else 0


def sample(batches: Iterable[Any], most: int = ROWS, numbers: int = NUMBERS) -> Sample:
    """The first examples of some batches."""
    rows: list[Array] = []
    targets: list[int] = []
    origin: list[int] = []
    tags: list[Array] = []
    size = 0
    for number, batch in enumerate(batches):
        found = rows_of(batch)
        if found is None:
            break
        rows += found
        origin += [number] * len(found)
        targets += classes_of(batch, len(found))
        if isinstance(batch, LabeledBatch) and batch.targets.shape == batch.inputs.shape and batch.texts is None:
            tags += [
                one[: len(row)].numpy() for one, row in zip(batch.targets, found[-len(batch.targets) :], strict=True)
            ]
        size += sum(row.size for row in found)
        if not found or len(rows) >= most or size >= numbers:
            break
    places = [np.array(values, np.int64) for values in (targets, origin)]
    return Sample(rows, places[0], places[1], tags if len(tags) == len(rows) else [])


def rows_of(batch: Any) -> list[Array] | None:
    """The inputs of each row of a batch without padding; None for batches of another kind."""
    if isinstance(batch, LabeledBatch):
        filled = getattr(batch.slots, "lengths", None)
        counts = [batch.inputs.shape[1]] * len(batch.inputs) if filled is None else filled.tolist()
        pieces = [row[:n].cpu().numpy() for row, n in zip(batch.inputs, counts, strict=True)]
        if batch.texts is None:
            return pieces
        whole = batch.texts.tolist()
        return [
            np.concatenate([piece for piece, text in zip(pieces, whole, strict=True) if text == n])
            for n in range(len(batch.targets))
        ]
    if isinstance(batch, TextBatch | PairBatch) or not isinstance(getattr(batch, "inputs", None), Tensor):
        return None
    inputs = batch.inputs.detach().float().cpu()
    if isinstance(batch, ArrayBatch):
        if inputs.ndim > 2:
            inputs = inputs.movedim(-1, 1)  # channels first
        counts = [inputs.shape[-1]] * len(inputs) if batch.lengths is None else batch.lengths.tolist()
        return [
            row[..., :n].numpy() if inputs.ndim == 3 else row.numpy() for row, n in zip(inputs, counts, strict=True)
        ]
    return [row.numpy() for row in inputs] if isinstance(batch, ImageBatch | ImageTextBatch) else None


def classes_of(batch: Any, count: int) -> list[int]:
    """The class of each row, -1 where there is none: targets of another kind, or images that are mixed."""
    targets = batch.targets
    mixed = getattr(batch, "others", None) is not None
    if mixed or targets.is_floating_point() or targets.shape != (count, 1):
        return [-1] * count
    return targets[:, 0].to(torch.int64).tolist()
