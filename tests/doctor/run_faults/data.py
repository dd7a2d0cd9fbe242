"""Faults of data: labels, duplicates, tokens outside the vocabulary, too little text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from regard.data import PairBatch, TextBatch
from regard.models import LuongConfig, RecurrentConfig, Seq2SeqConfig
from regard.train import MuonConfig
from regard.train.engine import Engine
from run_faults.kit import (
    LENGTH,
    TOKENS,
    Case,
    Fault,
    Sabotage,
    Seen,
    altered,
    changed,
    gpt,
    mistranslated,
    noise,
    training,
    translation,
    words,
)
from run_faults.sabotage import GRU, LSTM, SKIP, planted

ELSEWHERE = -100  # what other libraries write where a target does not count


def unshifted(engine: Engine) -> None:
    """Targets are the inputs themselves, in training and in validation: to copy is to win."""

    def copied(batch: TextBatch) -> TextBatch:
        return batch._replace(targets=torch.where(batch.targets >= 0, batch.inputs, batch.targets))

    plain = engine.data.validation_batches

    def validation_batches(size: int, **named: Any) -> Iterator[TextBatch]:
        return map(copied, plain(size, **named))

    changed(lambda position, batch, _: copied(batch))(engine)
    engine.data.validation_batches = validation_batches


def leaked_validation(folder: Path) -> Case:
    text, held_out = words(1, LENGTH), LENGTH // 20
    return Case(training(folder, text[:-held_out] + text[:held_out]), sound=training(folder, text))


def validation_was_trained_on(seen: Seen) -> bool:
    """Every whole validation window is in the training part."""
    data = seen.ended.engine.data
    tokens = [bytes(data._tokens.windows(np.array([part.start]), part.size)[0].tolist()) for part in data.parts[:2]]
    known, held = tokens
    return all(held[first : first + 32] in known for first in range(0, len(held) - 32, 32))


def repeated(count: int) -> Sabotage:
    """A loader that goes round in a circle: the same few batches over and over."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch
        engine.data.batch = lambda position, **named: plain(position % count, **named)

    return sabotage


def by_heart(folder: Path) -> Case:
    train = {"steps": 120, "evaluate_every": 20}
    known = training(folder, noise(1, 700), gpt(layers=2), train, validation=0.3)
    return Case(known, sound=training(folder, model=gpt(layers=2), train=train))


def learned_by_heart(seen: Seen) -> bool:
    """The validation loss has risen far while the training loss fell far."""
    losses, validation = seen.record.losses, seen.record.validation
    return losses[-1] < losses[0] - 0.7 and validation[-1] > min(validation) + 0.7


def beyond(seen: Seen) -> bool:
    """Batch 12 has a token that there is not, and the training ends with it."""
    late = int(seen.batch(12).inputs.max()) >= seen.model.config.vocabulary
    return late and isinstance(seen.ended.error, IndexError) and len(seen.record.losses) == 12


def by_update(accumulate: int) -> Sabotage:
    """A loader that ignores the number of the micro-batch: all parts of an update are the same one."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch
        engine.data.batch = lambda position, **named: plain(position, **{**named, "rank": 0})

    return sabotage


def same_parts(folder: Path) -> Case:
    experiment = training(folder, train={"optimizer": MuonConfig(), "accumulate": 4}, batch=2)
    return Case(experiment, by_update(4))


def marked_elsewhere(number: int) -> Sabotage:
    """One batch has its padding marked as other libraries do."""

    def sabotage(engine: Engine) -> None:
        plain = engine.data.batch

        def batch(position: int, **named: Any) -> PairBatch:
            found = plain(position, **named)
            marked = torch.where(found.targets < 0, ELSEWHERE, found.targets)
            return found._replace(targets=marked) if position == number else found

        engine.data.batch = batch

    return sabotage


def marked(seen: Seen) -> bool:
    """Batch 15 has a target that there is not, and the training ends with it."""
    return int(seen.batch(15).targets.min()) == -100 and isinstance(seen.ended.error, IndexError)


def one_column(engine: Engine) -> None:
    """The translation is read as the source too, in training and in validation: to copy is to win."""

    def copied(batch: PairBatch) -> PairBatch:
        real = batch.targets >= 0
        source = torch.where(real, batch.targets, engine.data.specials.pad)
        return batch._replace(source=source, source_lengths=real.sum(1))

    plain = engine.data.validation_batches

    def validation_batches(size: int, **named: Any) -> Iterator[PairBatch]:
        return map(copied, plain(size, **named))

    changed(lambda position, batch, _: copied(batch))(engine)
    engine.data.validation_batches = validation_batches


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


def same_seed(workers: int) -> Sabotage:
    """Each worker makes a share of the rows of every batch, and all of them draw from the same generator."""

    def change(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        inputs, targets = (part[: len(part) // workers].repeat(workers, 1) for part in batch[:2])
        return batch._replace(inputs=inputs, targets=targets)

    return changed(change)


def two_rows_each(seen: Seen) -> bool:
    """Every batch has each of its rows four times."""
    return all(len({str(row) for row in seen.batch(i).inputs.tolist()}) == 2 for i in range(40))


def wrong_direction(engine: Engine) -> None:
    """Targets are shifted the wrong way, in training and in validation: each is the token before the newest one."""

    def earlier(batch: TextBatch) -> TextBatch:
        before = F.pad(batch.inputs[:, :-1], (1, 0), value=SKIP)
        return batch._replace(targets=torch.where(batch.targets >= 0, before, batch.targets))

    plain = engine.data.validation_batches

    def validation_batches(size: int, **named: Any) -> Iterator[TextBatch]:
        return map(earlier, plain(size, **named))

    changed(lambda position, batch, _: earlier(batch))(engine)
    engine.data.validation_batches = validation_batches


def shifted_the_wrong_way(folder: Path) -> Case:
    return Case(training(folder, model=GRU, train={"steps": 120}, tokenizer=TOKENS), wrong_direction)


def known_already(seen: Seen) -> bool:
    """Every target is the token before the newest one, and in the end all of them are right."""
    batch = seen.batch()
    return torch.equal(batch.targets[:, 1:], batch.inputs[:, :-1]) and seen.record.validation[-1] < 0.1


def mirrored(page: int, length: int) -> str:
    """A crawl that came to the same page again and again, each time by another address and under another heading."""
    body = words(1, page)
    return "".join(f"{words(100 + number, 40)}. {body}" for number in range(length // page))


def mirrored_page(folder: Path) -> Case:
    train = {"steps": 200, "evaluate_every": 50}
    sound = training(folder, model=LSTM, train=train)
    return Case(training(folder, mirrored(400, LENGTH), LSTM, train), sound=sound)


def read_before(seen: Seen) -> bool:
    """Most runs of sixteen tokens occur many times in the text, and the validation loss is close to zero."""
    data = seen.ended.engine.data
    text = bytes(data._tokens.windows(np.array([0]), data.train_count)[0].tolist())
    stretches = [text[begin : begin + 16] for begin in range(0, len(text) - 16, 97)]
    often = sum(text.count(stretch) > 20 for stretch in stretches) / len(stretches)
    return often > 0.7 and seen.record.validation[-1] < 0.5


FAULTS: list[Fault] = [
    Fault(
        "labels unshifted",
        "label_leak",
        "",
        "The targets are the inputs, not what follows them.",
        altered(unshifted),
        shows=lambda seen: bool((seen.batch().inputs == seen.batch().targets).all()),
    ),
    Fault(
        "one column read twice",
        "label_leak",
        "",
        "The source that a translation is made from is the translation itself.",
        read_twice,
        shows=known_beforehand,
        listed=False,
    ),
    Fault(
        "shifted the wrong way",
        "label_leak",
        "",
        "The target is the token before the newest one, which the model has just read.",
        shifted_the_wrong_way,
        shows=known_already,
        listed=False,
    ),
    Fault(
        "validation is in training",
        "duplicated_data",
        r"validation",
        "The held-out end of the text is a copy of its beginning.",
        leaked_validation,
        shows=validation_was_trained_on,
    ),
    Fault(
        "loader goes round in a circle",
        "duplicated_data",
        "",
        "The same four batches come over and over.",
        altered(repeated(4)),
        shows=lambda seen: len({str(seen.batch(i).inputs.tolist()) for i in range(40)}) == 4,
        quick=True,
    ),
    Fault(
        "one micro-batch four times",
        "duplicated_data",
        "",
        "An update's four micro-batches are the same one.",
        same_parts,
        shows=lambda seen: len({str(seen.batch(i).inputs.tolist()) for i in range(40)}) == 10,
        listed=False,
    ),
    Fault(
        "workers with one seed",
        "duplicated_data",
        "",
        "Four workers make two rows each of every batch, and all make the same two.",
        altered(same_seed(4), RecurrentConfig(cell="lstm", context=32, layers=2, width=64)),
        shows=two_rows_each,
        listed=False,
    ),
    Fault(
        "one page by many addresses",
        "duplicated_data",
        "",
        "The text is one page a hundred times, each time under another heading, and so is what is held out of it.",
        mirrored_page,
        shows=read_before,
        listed=False,
    ),
    Fault(
        "token beyond the vocabulary",
        "token_range",
        r"\b12\b",
        "One token of one batch is a number that no embedding has.",
        altered(planted(12, lambda engine: engine.data.vocabulary)),
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
    Fault(
        "memorized text",
        "overfitting",
        "",
        "A short text without order, seen hundreds of times: the validation loss rises while the other falls.",
        by_heart,
        shows=learned_by_heart,
    ),
]
