"""Faults of settings, tasks, tokenizers and texts that a law of each of them shows."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn import functional as F

from regard.models import LanguageModel
from regard.tasks import TaskConfig, Term
from regard.train.engine import Engine
from run_faults.kit import LENGTH, Case, Fault, Seen, altered, dataset, gpt, training, words, written
from run_faults.steps import SHORT, fault


class Ignoring:
    """The next token, but the loss takes token 0 for padding."""

    def terms(self, model: LanguageModel, batch: Any) -> dict[str, Term]:
        logits, targets = model(batch.inputs, batch.slots).flatten(0, 1), batch.targets.clamp(min=0).flatten()
        return {"next": Term(F.cross_entropy(logits, targets, ignore_index=0, reduction="sum"), self._count(batch))}

    def counts(self, batch: Any) -> dict[str, Any]:
        return {"next": self._count(batch)}

    def _count(self, batch: Any) -> Any:
        return (batch.targets > 0).sum()


@dataclass(frozen=True)
class IgnoringConfig(TaskConfig, kind="ignoring"):
    """A loss that ignores a real token."""

    trains = LanguageModel

    def build(self) -> Any:
        return Ignoring()


def ignoring(folder: Path) -> Case:
    sound = training(folder, words(1, LENGTH), train=SHORT)
    return Case(replace(sound, task=IgnoringConfig()), sound=sound)


def mostly_dropped(folder: Path) -> Case:
    return Case(training(folder, model=gpt(dropout=0.9), train=SHORT), sound=training(folder, train=SHORT))


def lossy(engine: Engine) -> None:
    """The tokenizer encodes characters that it does not know as token 0."""
    tokenizer = dataset(engine).tokenizer
    encode = tokenizer.encode
    tokenizer.encode = lambda text: np.where(encode(text) % 5 == 4, 0, encode(text))


def shuffled(folder: Path) -> Case:
    """The characters of every training sentence are shuffled, those of the validation text are not."""
    draw, whole, held_out = random.Random(1), words(1, LENGTH), str(written(folder, words(2, LENGTH // 10)))
    mixed = ".".join("".join(draw.sample(part, len(part))) for part in whole.split("."))
    cases = (training(folder, text, validation_path=held_out, train=SHORT) for text in (mixed, whole))
    return Case(next(cases), sound=next(cases))


def without_order(seen: Seen) -> bool:
    """The most frequent pair of characters in the training text is rare in the held-out one."""
    data = dataset(seen.ended.engine)
    train = data.tokenizer.decode(seen.batch().inputs.flatten())
    return sum(train.count(vowel + other) for vowel in "aeiou" for other in "aeiou") > 0


FAULTS: list[Fault] = [
    Fault(
        "dropout of nine tenths",
        "unusual_setting",
        r"model\.dropout",
        "The probability to keep was given as the one to drop.",
        mostly_dropped,
        shows=lambda seen: seen.model.config.dropout == 0.9,
        listed=False,
        quick=True,
    ),
    Fault(
        "loss without a token",
        "task_loss",
        "the task",
        "The loss ignores token 0 as padding, and it is a real token.",
        ignoring,
        shows=lambda seen: isinstance(seen.ended.engine.task, Ignoring),
        listed=False,
        quick=True,
    ),
    fault(
        "tokenizer with one token for many characters",
        "data_fault",
        "the tokenizer",
        lossy,
        lambda seen: "encode" in vars(dataset(seen.ended.engine).tokenizer),
        make=altered(lossy, **SHORT),
    ),
    Fault(
        "training text without order",
        "data_fault",
        "training text",
        "The characters of every training sentence are in random order, those of the validation text are not.",
        shuffled,
        shows=without_order,
        listed=False,
        quick=True,
    ),
]
