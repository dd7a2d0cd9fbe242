"""Faults of data: texts that are wrong from the start, and batches that go wrong on their way to the model."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from regard.data import TextBatch
from regard.train.engine import Engine

Sabotage = Callable[[Engine], None]
RARE = "~"  # stands once, at the very beginning of the text


def words(seed: int, length: int) -> str:
    """Sentences of forty made-up words: quickly learned in part, and never the same twice."""
    draw = random.Random(4)
    lexicon = ["".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(n % 3 + 1)) for n in range(40)]
    draw = random.Random(seed)
    sentences = (" ".join(draw.choices(lexicon, k=draw.randint(3, 9))) + ". " for _ in range(length // 10))
    return "".join(sentences)[:length]


def noise(seed: int, length: int) -> str:
    """Letters without any order: all that can be learned of them is learned by heart."""
    return "".join(random.Random(seed).choices("abcdefghijklmnop", k=length))


def written(folder: Path, text: str) -> Path:
    """The text as a file, named by what is in it."""
    path = folder / f"text-{zlib.crc32(text.encode()):08x}.txt"
    path.write_text(text, encoding="utf-8")
    return path


def changed(change: Callable[[int, TextBatch, Engine], TextBatch]) -> Sabotage:
    """Training batches pass through `change`, which also gets their number."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch
        engine.data.batch = lambda position, **named: change(position, plain(position, **named), engine)

    return sabotage


def poisoned(number: int) -> Sabotage:
    """One batch is noise: its targets have nothing to do with its inputs."""

    def change(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        if position != number:
            return batch
        generator = torch.Generator().manual_seed(number)
        shape, vocabulary = batch.targets.shape, engine.data.vocabulary
        return batch._replace(targets=torch.randint(vocabulary, shape, generator=generator))

    return changed(change)


def planted(number: int, token: Callable[[Engine], int]) -> Sabotage:
    """One token of one batch is another."""

    def change(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        if position != number:
            return batch
        inputs = batch.inputs.clone()
        inputs[0, 3] = token(engine)
        return batch._replace(inputs=inputs)

    return changed(change)


def rare(engine: Engine) -> int:
    """The number of the character that stands once in the text."""
    return int(engine.data.tokenizer.encode(RARE)[0])


def broken_row(number: int) -> Sabotage:
    """The embedding of a rare character is not a number, and batch `number` is the first to have that character."""

    @torch.no_grad()
    def sabotage(engine: Engine) -> None:
        engine.model.get_parameter("embed.weight")[rare(engine)] = torch.nan
        planted(number, rare)(engine)

    return sabotage


def unshifted(engine: Engine) -> None:
    """Targets are the inputs themselves, in training and in validation: to copy is to win."""

    def copied(batch: TextBatch) -> TextBatch:
        return batch._replace(targets=torch.where(batch.targets >= 0, batch.inputs, batch.targets))

    plain = engine.data.validation_batches

    def validation_batches(size: int, **named: Any) -> Iterator[TextBatch]:
        return map(copied, plain(size, **named))

    changed(lambda position, batch, _: copied(batch))(engine)
    engine.data.validation_batches = validation_batches


def repeated(count: int) -> Sabotage:
    """A loader that goes round in a circle: the same few batches over and over."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch
        engine.data.batch = lambda position, **named: plain(position % count, **named)

    return sabotage


def slow(seconds: float) -> Sabotage:
    """Every batch is waited for."""

    def change(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        time.sleep(seconds)
        return batch

    return changed(change)
