"""Faults beside the model: in the data, the task and the tokenizer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch.nn import functional as F

from regard.data import Bytes, Characters, Data, TextBatch, TextConfig, TextData
from regard.data.tokenizers.characters import UNKNOWN, code_points
from regard.tasks import LanguageTask, Term

ALPHABET = "abcdefghij "  # as many as the models of the faults have tokens
CLEANED = (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're")
Text = TypeVar("Text", bound=TextData)


def text_data(kind: type[Text], context: int) -> Text:
    """A text of 6,000 characters in which no 16 in a row occur twice, cut into 90 % and 10 %."""
    draw = random.Random(8)
    words = ("".join(draw.choices(ALPHABET[:-1], k=draw.randint(2, 9))) for _ in range(2000))
    with TemporaryDirectory() as folder:  # the tokens stay mapped after it is gone
        path = Path(folder) / "text.txt"
        path.write_text(" ".join(words)[:6000], encoding="utf-8")
        made = TextConfig(path=str(path)).build(context, Path(folder))
    return kind(made._tokens, made.tokenizer, context, made.parts, name="words", sha256=made.sha256)


class Sentences(Data):
    """Rows of different lengths, padded at the right; whatever is padding is not counted."""

    vocabulary: int = len(ALPHABET)

    def __init__(self, context: int):
        generator = torch.Generator().manual_seed(5)
        self.context = context
        self.lengths = torch.randint(1, context + 1, (96,), generator=generator)  # targets of each row
        tokens = torch.randint(self.vocabulary, (96, context + 1), generator=generator)
        self.tokens = tokens.masked_fill(torch.arange(context + 1) > self.lengths[:, None], 0)

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        first = (step * world + rank) * size
        return self.rows(torch.arange(first, first + size) % 64)

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        for first in range(64, 96, size * world):
            numbers = torch.arange(first + rank * size, first + (rank + 1) * size)
            batch = self.rows(numbers.clamp(max=95))
            yield batch._replace(targets=batch.targets.masked_fill(numbers[:, None] > 95, -1))

    def rows(self, numbers: torch.Tensor) -> TextBatch:
        tokens, lengths = self.tokens[numbers], self.lengths[numbers]
        counted = torch.arange(self.context) < lengths[:, None]
        return TextBatch(tokens[:, :-1], torch.where(counted, tokens[:, 1:], -1))


class Unshifted(TextData):
    """The targets are the inputs, for a model that does not shift them either: to copy is to win."""

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        return _copied(super().batch(step, seed=seed, rank=rank, world=world, size=size))

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        return map(_copied, super().validation_batches(size, rank=rank, world=world))


def _copied(batch: TextBatch) -> TextBatch:
    return batch._replace(targets=torch.where(batch.targets >= 0, batch.inputs, batch.targets))


class ShuffledWindows(TextData):
    """First all windows of the text, one from every token on; then every tenth, at random, is held out.

    No window is in both parts, and yet every held-out one is in training, but for a token at its end.
    """

    def _starts(self, held_out: bool) -> np.ndarray:
        every = np.random.default_rng(2).permutation(len(self) - self.context)
        return every[: len(every) // 10] if held_out else every[len(every) // 10 :]

    def offsets(self, step: int, *, seed: int, count: int) -> np.ndarray:  # [count]
        starts = self._starts(held_out=False)
        return starts[super().offsets(step, seed=seed, count=count) % len(starts)]

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        starts = self._starts(held_out=True)
        for first in range(rank * size, len(starts) - size * world, size * world):
            windows = torch.from_numpy(self._tokens.windows(starts[first : first + size], self.context + 1))
            yield TextBatch(windows[:, :-1], windows[:, 1:])


class MeanOfMeans(LanguageTask):
    """The loss of a batch is its mean, and counts as one: micro-batches with few targets weigh as much as full ones."""

    def terms(self, model: Any, batch: Any) -> dict[str, Term]:
        total, count, *_ = super().terms(model, batch)["next_token"]
        return {"next_token": Term(total / count, torch.ones_like(count))}

    def counts(self, batch: Any) -> dict[str, torch.Tensor]:
        return {name: torch.ones_like(count) for name, count in super().counts(batch).items()}


class Skipping(Characters):
    """A character it does not know is left out, without a word."""

    def encode(self, text: str) -> np.ndarray:
        ids = self._numbers.take(code_points(text), mode="clip")
        return ids[ids != UNKNOWN].astype(np.int64)


class CleanedUp(Bytes):
    """Spaces before punctuation are taken for traces of the tokenizer and removed."""

    def decode(self, ids: ArrayLike) -> str:
        text = super().decode(ids)
        for trace in CLEANED:
            text = text.replace(trace, trace[1:])
        return text


class ShiftedTwice(LanguageTask):
    """The data shift the targets, and the task does so again: a target is what follows after the next token."""

    def terms(self, model: Any, batch: Any) -> dict[str, Term]:
        return super().terms(model, _later(batch))

    def counts(self, batch: Any) -> dict[str, torch.Tensor]:
        return super().counts(_later(batch))


def _later(batch: Any) -> Any:
    return batch._replace(targets=F.pad(batch.targets[:, 1:], (0, 1), value=-1))


class RunningOn(Sentences):
    """Training goes round all rows of the file, not only its own: after the first 64 come those that are held out."""

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        first = (step * world + rank) * size
        return self.rows(torch.arange(first, first + size) % len(self.tokens))
