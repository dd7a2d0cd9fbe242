"""Faults of targets: the answer is in the question, or outside the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from regard.data import PairBatch, TextBatch
from regard.models import LuongConfig, Seq2SeqConfig
from regard.train.engine import Engine
from run_faults.kit import (
    TOKENS,
    Case,
    Fault,
    Sabotage,
    Seen,
    altered,
    changed,
    dataset,
    mistranslated,
    training,
    translation,
)
from run_faults.sabotage import GRU, SKIP, planted

ELSEWHERE = -100  # what other libraries write where a target does not count


def everywhere(change: Callable[[Any], Any], engine: Engine) -> None:
    """Training and validation batches pass through `change`."""
    plain = dataset(engine).validation_batches
    changed(lambda position, batch, _: change(batch))(engine)
    engine.data.validation_batches = lambda size, **named: map(change, plain(size, **named))


def unshifted(engine: Engine) -> None:
    """Targets are the inputs themselves, in training and in validation: to copy is to win."""

    def copied(batch: TextBatch) -> TextBatch:
        return batch._replace(targets=torch.where(batch.targets >= 0, batch.inputs, batch.targets))

    everywhere(copied, engine)


def beyond(seen: Seen) -> bool:
    """Batch 12 has a token that there is not, and the training ends with it."""
    late = int(seen.batch(12).inputs.max()) >= seen.model.config.vocabulary
    return late and isinstance(seen.ended.error, IndexError) and len(seen.record.losses) == 12


def marked_elsewhere(number: int) -> Sabotage:
    """One batch has its padding marked as other libraries do."""

    def sabotage(engine: Engine) -> None:
        plain = dataset(engine).batch

        def batch(step: int, **named: Any) -> PairBatch:
            found = plain(step, **named)
            marked = torch.where(found.targets < 0, ELSEWHERE, found.targets)
            return found._replace(targets=marked) if step == number else found

        engine.data.batch = batch

    return sabotage


def marked(seen: Seen) -> bool:
    """Batch 15 has a target that there is not, and the training ends with it."""
    return int(seen.batch(15).targets.min()) == -100 and isinstance(seen.ended.error, IndexError)


def one_column(engine: Engine) -> None:
    """The translation is read as the source too, in training and in validation: to copy is to win."""

    def copied(batch: PairBatch) -> PairBatch:
        real = batch.targets >= 0
        source = torch.where(real, batch.targets, dataset(engine).specials.pad)
        return batch._replace(source=source, source_lengths=real.sum(1))

    everywhere(copied, engine)


def read_twice(folder: Path) -> Case:
    sound = translation(folder)
    longer = replace(sound.train, steps=150, evaluate_every=50)  # to copy takes some learning
    return Case(replace(sound, train=longer), one_column)


def known_beforehand(seen: Seen) -> bool:
    """Every source is the translation, and in the end most of it is simply copied."""
    batch = seen.batch()
    real = batch.targets >= 0
    same = batch.source.shape == batch.targets.shape and torch.equal(batch.source[real], batch.targets[real])
    return same and seen.record.validation[-1] < 0.8


def wrong_direction(engine: Engine) -> None:
    """Targets are shifted the wrong way, in training and in validation: each is the token before the newest one."""

    def earlier(batch: TextBatch) -> TextBatch:
        before = F.pad(batch.inputs[:, :-1], (1, 0), value=SKIP)
        return batch._replace(targets=torch.where(batch.targets >= 0, before, batch.targets))

    everywhere(earlier, engine)


def shifted_the_wrong_way(folder: Path) -> Case:
    return Case(training(folder, model=GRU, train={"steps": 120}, tokenizer=TOKENS), wrong_direction)


def known_already(seen: Seen) -> bool:
    """Every target is the token before the newest one, and in the end all of them are right."""
    batch = seen.batch()
    return torch.equal(batch.targets[:, 1:], batch.inputs[:, :-1]) and seen.record.validation[-1] < 0.1


FAULTS: list[Fault] = [
    Fault(
        "labels unshifted",
        "target_fault",
        "",
        "The targets are the inputs, not what follows them.",
        altered(unshifted),
        shows=lambda seen: bool((seen.batch().inputs == seen.batch().targets).all()),
    ),
    Fault(
        "one column read twice",
        "target_fault",
        "",
        "The source that a translation is made from is the translation itself.",
        read_twice,
        shows=known_beforehand,
        listed=False,
    ),
    Fault(
        "shifted the wrong way",
        "target_fault",
        "",
        "The target is the token before the newest one, which the model has just read.",
        shifted_the_wrong_way,
        shows=known_already,
        listed=False,
    ),
    Fault(
        "token beyond the vocabulary",
        "token_range",
        r"\b12\b",
        "One token of one batch is a number that no embedding has.",
        altered(planted(12, lambda engine: dataset(engine).vocabulary)),
        shows=beyond,
        quick=True,
    ),
    Fault(
        "mark of another library",
        "token_range",
        r"\b15\b",
        "Targets that do not count are -100 in one batch, and -1 elsewhere.",
        mistranslated(marked_elsewhere(15), Seq2SeqConfig(context=64, width=32, dropout=0.0, attention=LuongConfig())),
        shows=marked,
        listed=False,
    ),
]
