"""Faults of texts: duplicates, and too little of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from regard.data import TextBatch
from regard.models import RecurrentConfig
from regard.train import MuonConfig
from regard.train.engine import Engine
from run_faults.kit import (
    LENGTH,
    Case,
    Fault,
    Sabotage,
    Seen,
    altered,
    changed,
    dataset,
    gpt,
    noise,
    training,
    words,
)
from run_faults.sabotage import LSTM


def leaked_validation(folder: Path) -> Case:
    text, held_out = words(1, LENGTH), LENGTH // 20
    return Case(training(folder, text[:-held_out] + text[:held_out]), sound=training(folder, text))


def validation_was_trained_on(seen: Seen) -> bool:
    """Every whole validation window is in the training part."""
    data = dataset(seen.ended.engine)
    tokens = [bytes(data._tokens.windows(np.array([part.start]), part.size)[0].tolist()) for part in data.parts[:2]]
    known, held = tokens
    return all(held[first : first + 32] in known for first in range(0, len(held) - 32, 32))


def repeated(count: int) -> Sabotage:
    """A loader that goes round in a circle: the same few batches over and over."""

    def sabotage(engine: Engine) -> None:
        plain = dataset(engine).batch
        engine.data.batch = lambda step, **named: plain(step % count, **named)

    return sabotage


def by_heart(folder: Path) -> Case:
    train = {"steps": 120, "evaluate_every": 20}
    known = training(folder, noise(1, 700), gpt(layers=2), train, validation=0.3)
    return Case(known, sound=training(folder, model=gpt(layers=2), train=train))


def learned_by_heart(seen: Seen) -> bool:
    """The validation loss has risen far while the training loss fell far."""
    losses, validation = seen.record.losses, seen.record.validation
    return losses[-1] < losses[0] - 0.7 and validation[-1] > min(validation) + 0.7


def by_update() -> Sabotage:
    """A loader that ignores the number of the micro-batch: all parts of an update are the same one."""

    def sabotage(engine: Engine) -> None:
        plain = dataset(engine).batch
        engine.data.batch = lambda step, **named: plain(step, **{**named, "rank": 0})

    return sabotage


def same_parts(folder: Path) -> Case:
    experiment = training(folder, train={"optimizer": MuonConfig(), "accumulate": 4}, batch=2)
    return Case(experiment, by_update())


def same_seed(workers: int) -> Sabotage:
    """Each worker makes a share of the rows of every batch, and all of them draw from the same generator."""

    def change(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        inputs, targets = (part[: len(part) // workers].repeat(workers, 1) for part in batch[:2])
        return batch._replace(inputs=inputs, targets=targets)

    return changed(change)


def two_rows_each(seen: Seen) -> bool:
    """Every batch has each of its rows four times."""
    return all(len({str(row) for row in seen.batch(i).inputs.tolist()}) == 2 for i in range(40))


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
    data = dataset(seen.ended.engine)
    text = bytes(data._tokens.windows(np.array([0]), data.train_count)[0].tolist())
    stretches = [text[begin : begin + 16] for begin in range(0, len(text) - 16, 97)]
    often = sum(text.count(stretch) > 20 for stretch in stretches) / len(stretches)
    return often > 0.7 and seen.record.validation[-1] < 0.5


FAULTS: list[Fault] = [
    Fault(
        "validation is in training",
        "data_fault",
        r"validation",
        "The held-out end of the text is a copy of its beginning.",
        leaked_validation,
        shows=validation_was_trained_on,
    ),
    Fault(
        "loader goes round in a circle",
        "data_fault",
        "",
        "The same four batches come over and over.",
        altered(repeated(4)),
        shows=lambda seen: len({str(seen.batch(i).inputs.tolist()) for i in range(40)}) == 4,
        quick=True,
    ),
    Fault(
        "one micro-batch four times",
        "data_fault",
        "",
        "An update's four micro-batches are the same one.",
        same_parts,
        shows=lambda seen: len({str(seen.batch(i).inputs.tolist()) for i in range(40)}) == 10,
        listed=False,
    ),
    Fault(
        "workers with one seed",
        "data_fault",
        "",
        "Four workers make two rows each of every batch, and all make the same two.",
        altered(same_seed(4), RecurrentConfig(cell="lstm", context=32, layers=2, width=64)),
        shows=two_rows_each,
        listed=False,
    ),
    Fault(
        "one page by many addresses",
        "data_fault",
        "",
        "The text is one page a hundred times, each time under another heading, and so is what is held out of it.",
        mirrored_page,
        shows=read_before,
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
