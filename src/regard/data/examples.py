"""Data of separate examples in three parts. The batch of a step is a pure function of (seed, step)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.base import Data, Example

B = TypeVar("B", covariant=True)
Numbers = NDArray[np.int64]  # of examples in their part
Uniform = NDArray[np.float64]  # random numbers in [0, 1)
Part = Literal["train", "validation", "test"]
WORDS = 2**64


class ExampleData(Data[B]):
    """Examples that occur once in an epoch, in another order each time. A subclass sets ``draws`` and makes batches."""

    draws: int = 0  # random numbers for each training example, such as for augmentation
    labels: tuple[str, ...] = ()  # the names of the classes; (): there are none
    values: NDArray[np.float32] | None = None  # [N, K], what is to be predicted of the training part, if it is numbers

    @property
    def frequencies(self) -> Numbers:
        """How often each class occurs in the training part, [classes]; for data with classes."""
        raise NotImplementedError

    def __init__(self, counts: tuple[int, int, int], name: str) -> None:
        """``counts``: examples of the training, validation and test parts."""
        self.count, self.validation_count, self.test_count = counts
        self.name = name
        self._order = lru_cache(2)(self._shuffled)

    @abstractmethod
    def train_batch(self, numbers: Numbers, random: Uniform) -> B:
        """The training examples with these numbers [B]; ``random`` [B, draws] decides how they are changed."""

    @abstractmethod
    def part_batch(self, part: Part, numbers: Numbers, *, counts: bool = True) -> B:
        """Examples of a part as they are; without ``counts``, none of their targets counts."""

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> B:
        """Part ``rank`` of the batch of a step: ``size`` examples; every example occurs once in an epoch."""
        total = size * world
        place = np.arange(step * total + rank, (step + 1) * total, world)
        epochs = place // self.count
        numbers = np.concatenate(
            [self._order(seed, int(epoch), total)[place[epochs == epoch] % self.count] for epoch in np.unique(epochs)]
        )
        return self.train_batch(numbers, draw(seed, step, total, self.draws)[rank::world])

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[B]:
        """The validation part in order; over all ranks each example once."""
        return self.in_order("validation", size, rank, world)

    def test_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[B]:
        """The test part, in the same way."""
        return self.in_order("test", size, rank, world)

    def in_order(self, part: Part, size: int, rank: int = 0, world: int = 1) -> Iterator[B]:
        """The batches of a part in order."""
        count = {"train": self.count, "validation": self.validation_count, "test": self.test_count}[part] or 0
        for start in range(0, count, size * world):
            numbers = np.arange(start, min(start + size * world, count))[rank::world]
            if len(numbers):
                yield self.part_batch(part, numbers)
            else:  # every rank needs a batch: an example without a target
                yield self.part_batch(part, np.zeros(1, np.int64), counts=False)

    def held_out(self, count: int) -> list[Example]:
        """The first examples of the test part, or of the validation part if there is none."""
        part: Part = "test" if self.test_count else "validation"
        count, found = min(count, (self.test_count if part == "test" else self.validation_count) or 0), []
        for number in range(count):
            batch = self.part_batch(part, np.array([number]))
            given = self.answer(batch)
            name = f"{part} example {number}"
            found.append(Example(name if given is None else f"{name}: {given}", batch, given))
        return found

    def answer(self, batch: Any) -> str | None:
        """The right answer for a batch of one row: the name of its class."""
        return self.labels[int(batch.targets)] if self.labels else None

    def shown(self) -> Example | None:
        """The example that `regard look` shows. Default: the first one held out."""
        return next(iter(self.held_out(1)), None)

    def epoch(self, size: int, world: int = 1) -> float:
        """Steps in which every training example occurs once."""
        return self.count / (size * world)

    def _shuffled(self, seed: int, epoch: int, total: int) -> Numbers:
        """The order of the examples in an epoch; ``total``: examples of a step."""
        generator = np.random.Philox(key=(seed % WORDS) << 64 | epoch % WORDS)
        return np.argsort(generator.random_raw(self.count), kind="stable")


def draw(seed: int, step: int, count: int, each: int) -> Uniform:
    """Random numbers in [0, 1), [count, each]; the upper half of the counter keeps them apart from the orders."""
    generator = np.random.Philox(counter=1 << 192, key=(seed % WORDS) << 64 | step % WORDS)
    words = (generator.random_raw(count * each) >> np.uint64(11)).astype(np.float64)  # 53 bits are exact
    return (words * 2.0**-53).reshape(count, each)
