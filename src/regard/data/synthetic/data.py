"""Batches of generated problems: infinitely many to train on, longer ones to test.

A row is a prompt, ">", its answer and the end of the line; only the answer and the end are targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from regard.config import nearest, option
from regard.data.base import IGNORE_INDEX, Data, DataConfig, TextBatch
from regard.data.synthetic.problems import ALPHABET, END, PROBLEMS, SEPARATOR
from regard.data.tokenizers import Characters
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.data.tokenizers import Tokenizer

STEP = 8  # lengths of rows are multiples of it
TRAIN, VALIDATION, TEST = range(3)  # parts draw from streams of their own


@dataclass(frozen=True)
class SyntheticConfig(DataConfig, kind="synthetic"):
    """Problems with known answers, such as copying, of growing size."""

    problem: str = option("copy", f"what to solve: {', '.join(PROBLEMS)}")
    size: int = option(16, "the largest number of symbols in training and validation; smaller ones come as often")
    longer: tuple[int, ...] = option((1, 2, 4), "the test part has problems of so many times that size")
    validation: int = option(256, "problems in the validation part, and for each size of the test part")
    batch: int = option(64, "problems per batch")

    def check(self) -> None:
        if self.problem not in PROBLEMS:
            near = nearest(self.problem, PROBLEMS)
            raise ValueError(f"there is no problem {self.problem!r}{f'; did you mean {near}' if near else ''}")
        if min(self.size, self.validation, self.batch, *self.longer) < 1 or not self.longer:
            raise ValueError("size, validation, batch and longer must be at least 1")

    def build(self, context: int, cache: Path | None = None, tokenizer: Tokenizer | None = None) -> SyntheticData:
        return SyntheticData(self, context)


class SyntheticData(Data[TextBatch]):
    """Row r of a part is a function of (seed, part, r)."""

    dynamic_shapes = True
    vocabulary = len(ALPHABET)

    def __init__(self, config: SyntheticConfig, context: int):
        self.config, self.name = config, f"generated problems ({config.problem})"
        self.tokenizer: Tokenizer = Characters(ALPHABET)
        self.longest = self._prompt(config.size)
        needed = max(len(self.text(0, TEST, row)) for row in range(len(config.longer) * 16)) - 1
        if needed > context:
            raise UserError(
                f"{config.problem} of size {config.size * max(config.longer)} has {needed} tokens; "
                f"set --model.context {needed} or more, or a smaller --data.size"
            )
        self.context = context
        self.validation_count = self._targets(VALIDATION, config.validation)
        self.test_count = self._targets(TEST, config.validation * len(config.longer))

    def text(self, seed: int, part: int, row: int) -> str:
        """A problem with its answer."""
        config = self.config
        draw = Random(f"{config.problem} {seed} {part} {row}")
        size = config.size * config.longer[row % len(config.longer)] if part == TEST else draw.randint(1, config.size)
        prompt, answer = PROBLEMS[config.problem].draw(draw, size)
        return f"{prompt}{SEPARATOR}{answer}{END}"

    def _prompt(self, size: int) -> int:
        """The tokens of the longest prompt of a size, of some."""
        draw = PROBLEMS[self.config.problem].draw
        return max(len(draw(Random(number), size)[0]) for number in range(16)) + 1

    def _targets(self, part: int, rows: int) -> int:
        return sum(len(text) - text.index(SEPARATOR) - 1 for text in (self.text(0, part, row) for row in range(rows)))

    def rows(self, seed: int, part: int, numbers: Sequence[int]) -> TextBatch:
        """The problems with these numbers; -1: none."""
        import torch  # not at the top: configs are read without torch

        texts = [self.text(seed, part, number) if number >= 0 else "" for number in numbers]
        width = max(STEP, *(-(-(len(text) - 1) // STEP) * STEP for text in texts))
        inputs = np.zeros((len(texts), width), np.int64)
        targets = np.full((len(texts), width), IGNORE_INDEX, np.int64)
        for row, text in enumerate(texts):
            if text:
                ids, start = self.tokenizer.encode(text), text.index(SEPARATOR)
                inputs[row, : len(ids) - 1] = ids[:-1]
                targets[row, start : len(ids) - 1] = ids[start + 1 :]
        return TextBatch(torch.from_numpy(inputs), torch.from_numpy(targets))

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        first = (step * world + rank) * size
        return self.rows(seed, TRAIN, range(first, first + size))

    def _part(self, part: int, count: int, size: int, rank: int, world: int) -> Iterator[TextBatch]:
        for first in range(0, count, size * world):
            own = range(first + rank * size, first + (rank + 1) * size)
            yield self.rows(0, part, [number if number < count else -1 for number in own])

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        return self._part(VALIDATION, self.config.validation, size, rank, world)

    def test_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        return self._part(TEST, self.config.validation * len(self.config.longer), size, rank, world)
