"""What a case of a held-out list is: arguments of `regard train`, a fault to inject, and the expected answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Arguments = Callable[[Path], Sequence[str]]


@dataclass(frozen=True)
class Case:
    """One run. ``arguments`` gets a folder for files that it makes; they begin with the recipe."""

    name: str
    arguments: Arguments
    inject: Callable[[], None] | None = None  # patches the product's classes; None: the arguments are the fault
    sound: Arguments | None = None  # the arguments without the fault, if the arguments are the fault
    cause: str = ""  # what a finding has to say
    place: str = ""  # where
    effect: str = ""  # what the fault does to the run
    source: str = ""  # where it was seen
    before: Arguments | None = None  # a run to train first, called NAME-base, without the fault and the doctor
    resume: int | None = None  # `regard resume --steps` afterwards, with the fault; the training is then without it


#: The character model of `shakespeare-small` with less of its own: rotary positions and one token at a time.
TEXT = (
    "shakespeare-small",
    "--model.ngrams=1",
    "--data.limit=400000",
    "--train.steps=250",
    "--train.evaluate_every=50",
)
ADAMW = ("--train.optimizer=adamw", "--train.optimizer.lr=3e-3")
DIGITS = ("digits", "--model.layers=2", "--train.steps=200", "--train.evaluate_every=50")
PAIRS = (
    *("translate-transformer", "--model.layers=1", "--model.width=64", "--model.dropout=0.0", "--data.near=100"),
    *("--data.tokenizer.vocabulary=500", "--data.batch=1024", "--train.steps=250", "--train.evaluate_every=50"),
)
REVIEWS = (
    *("sentiment", "--init=scratch", "--train.adapt=full", "--model.layers=2", "--model.width=64", "--model.heads=2"),
    *("--model.context=128", "--data.tokenizer.vocabulary=600", "--data.windows=1"),
    *("--train.optimizer.lr=1e-3", "--train.steps=200", "--train.evaluate_every=50", "--data.validation=0.1"),
)
