"""Twenty-five faults of training runs that really happen, each as a training of seconds on one core.

The list was fixed before anything that shall find them was written. ``make(folder)`` gives a ``Case`` (run_kit.py): an
experiment, perhaps a sabotage of the built engine, perhaps a limit of memory. ``kind`` must be among the findings of
the run, and a finding of that kind must name a place in which ``where`` is found ("": the fault has no place). Other
findings may stand beside it, where one fault has two faces: a model that sees the future also finds its labels easy.

What a place looks like:

    a module      by its path in the model: blocks.1.attention
    an expert     the path of its layer and its number: blocks.1.feedforward ... 3
    a batch       its number, which ``data.batch(number)`` was asked for, counted from 0 in micro-batches
    a key         of the experiment: train.schedule.warmup

``HEALTHY`` are runs of every recipe for which nothing may be found at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import fault_batches as batches
import fault_models as models
import torch
from fault_batches import RARE, noise, words, written
from healthy_runs import HEALTHY
from run_kit import Case
from torch import nn

from regard.data import TextConfig
from regard.models import GPTConfig, RecurrentConfig
from regard.nn import GELUConfig, ReLUConfig
from regard.nn.experts.moe import MoEConfig
from regard.train import AdamWConfig, ConstantScheduleConfig, Experiment, TrainConfig
from regard.train.device import memory

__all__ = ["FAULTS", "HEALTHY", "KINDS", "Case", "Fault"]

KINDS = [
    "exploding_gradients",
    "vanishing_gradients",
    "attention_collapse",
    "uniform_heads",
    "loss_spike",
    "non_finite",
    "rate_too_high",
    "rate_too_low",
    "dead_units",
    "unused_expert",
    "overloaded_expert",
    "mask_fault",
    "position_fault",
    "label_leak",
    "duplicated_data",
    "overfitting",
    "token_range",
    "starvation",
    "memory",
]
LENGTH = 40_000  # characters: no window comes twice in a short run
MODEL: dict[str, Any] = {"context": 32, "layers": 3, "heads": 2, "width": 32, "zero_init": False}
TRAIN = TrainConfig(
    steps=60,
    optimizer=AdamWConfig(lr=5e-3),
    schedule=ConstantScheduleConfig(warmup=5.0),
    log_every=1,
    evaluate_every=20,
    save_every=None,
    device="cpu",
)


class Fault(NamedTuple):
    """One thing wrong, how it must be called and where it must be seen."""

    name: str
    kind: str
    where: str  # a regular expression
    about: str
    make: Callable[[Path], Case]


def training(
    folder: Path, text: str | None = None, model: Any = None, train: dict[str, Any] | None = None, **data: Any
) -> Experiment:
    """A small sound training; arguments change parts of it."""
    path = written(folder, RARE + words(1, LENGTH) if text is None else text)
    config = {"validation": 0.05, "batch": 8, **data}
    model = gpt() if model is None else model
    return Experiment(model, TextConfig(path=str(path), **config), train=replace(TRAIN, **(train or {})), seed=3)


def gpt(**changes: Any) -> GPTConfig:
    """A small sound model."""
    return GPTConfig(**{**MODEL, **changes})


def altered(sabotage: models.Sabotage, model: Any = None, **train: Any) -> Callable[[Path], Case]:
    """The small sound training with a sabotage."""
    return lambda folder: Case(training(folder, model=model, train=train), sabotage)


def misjudged(**train: Any) -> Callable[[Path], Case]:
    """The small training with settings that do not suit it."""
    return lambda folder: Case(training(folder, train=train), sound=training(folder))


def recurrent_too_large(folder: Path) -> Case:
    model = RecurrentConfig(cell="rnn", context=64, layers=2, width=32)
    large = models.parameter("blocks.0.recurrent.cells.weight_hh_l0", lambda weight: nn.init.normal_(weight, std=0.53))
    return Case(training(folder, model=model, train={"clip": None, "steps": 40}), large)


def saturated(folder: Path) -> Case:
    model = RecurrentConfig(cell="rnn", context=32, layers=2, width=32)
    large = models.parameter("blocks.0.recurrent.cells.bias_ih_l0", lambda bias: bias.fill_(12.0))
    return Case(training(folder, model=model, train={"steps": 40}), large)


def dead_layer(folder: Path) -> Case:
    low = models.parameter("blocks.1.feedforward.up.bias", lambda bias: bias.fill_(-20.0))
    return Case(training(folder, model=gpt(feedforward=ReLUConfig(), bias=True)), low)


def poisoned_part(folder: Path) -> Case:
    experiment = training(folder, train={"accumulate": 2, "steps": 50}, batch=4)
    return Case(experiment, batches.poisoned(81))


def leaked_validation(folder: Path) -> Case:
    text, held_out = words(1, LENGTH), LENGTH // 20
    return Case(training(folder, text[:-held_out] + text[:held_out]), sound=training(folder, text))


def by_heart(folder: Path) -> Case:
    train = {"steps": 120, "evaluate_every": 20}
    known = training(folder, noise(1, 700), gpt(layers=2), train, validation=0.3)
    return Case(known, sound=training(folder, model=gpt(layers=2), train=train))


def full_memory(folder: Path) -> Case:
    experiment = training(folder, train={"steps": 20}, batch=64)
    return Case(experiment, limit=round(memory(torch.device("cpu")) * 1.03))


MIXTURE = gpt(feedforward=MoEConfig(experts=8, active=2, balance=0.05, z=0.0))

FAULTS: list[Fault] = [
    Fault(
        "recurrent matrix too large",
        "exploding_gradients",
        r"blocks\.0\.recurrent",
        "A tanh network whose recurrent matrix lengthens every vector, and nothing clips the gradient.",
        recurrent_too_large,
    ),
    Fault(
        "backward pass written wrong",
        "exploding_gradients",
        r"blocks\.1",
        "A backward pass by hand forgets a division: below it gradients are a thousand times too large.",
        altered(models.amplified("blocks.1.feedforward")),
    ),
    Fault(
        "saturated cells",
        "vanishing_gradients",
        r"blocks\.0\.recurrent",
        "Biases so large that every tanh of one layer is at its end, where it has no slope.",
        saturated,
    ),
    Fault(
        "detached in the middle",
        "vanishing_gradients",
        r"blocks\.0",
        "A detach left in before the second block: the first one never gets a gradient.",
        altered(models.detached("blocks.1")),
    ),
    Fault(
        "scores too large",
        "attention_collapse",
        r"blocks\.1\.attention",
        "Queries and keys of one layer are far too large: each row has all its weight on one key.",
        altered(models.sharpened(1, 40.0), gpt(qk_norm=False)),
    ),
    Fault(
        "scale almost zero",
        "uniform_heads",
        r"blocks\.1\.attention",
        "The scores of one layer are scaled to nothing: its heads take the mean of all they see.",
        altered(models.flattened(1)),
    ),
    Fault(
        "poisoned batch",
        "loss_spike",
        r"\b41\b",
        "The targets of one batch are noise.",
        altered(batches.poisoned(41)),
    ),
    Fault(
        "poisoned micro-batch",
        "loss_spike",
        r"\b81\b",
        "The targets of one micro-batch are noise, and an update takes two.",
        poisoned_part,
    ),
    Fault(
        "activation overflows",
        "non_finite",
        r"blocks\.1\.feedforward",
        "An exponential as one layer's activation overflows.",
        altered(models.exponential(1), gpt(feedforward=GELUConfig())),
    ),
    Fault(
        "embedding of a rare token broken",
        "non_finite",
        r"\bembed\b",
        "One row of the embedding is NaN; the first batch with that token is the 21st.",
        altered(batches.broken_row(20), gpt(tied=False)),
    ),
    Fault(
        "rate a hundred times too high",
        "rate_too_high",
        "",
        "Each update is as large as the weights themselves.",
        misjudged(optimizer=AdamWConfig(lr=0.5)),
    ),
    Fault(
        "rate a thousand times too low",
        "rate_too_low",
        "",
        "The weights hardly move.",
        misjudged(optimizer=AdamWConfig(lr=5e-6)),
    ),
    Fault(
        "dead layer",
        "dead_units",
        r"blocks\.1\.feedforward",
        "The biases of one layer's ReLUs are so low that no unit is ever on.",
        dead_layer,
    ),
    Fault(
        "expert shut out",
        "unused_expert",
        r"blocks\.1\.feedforward.*\b3\b",
        "A bias keeps every token from one expert of one layer.",
        altered(models.biased_router(1, 3, -30.0), MIXTURE),
    ),
    Fault(
        "expert preferred",
        "overloaded_expert",
        r"blocks\.0\.feedforward.*\b2\b",
        "A bias sends every token to one expert of one layer.",
        altered(models.biased_router(0, 2, 30.0), MIXTURE),
    ),
    Fault(
        "no causal mask",
        "mask_fault",
        "",
        "Every layer sees the future.",
        altered(models.unmasked),
    ),
    Fault(
        "one layer ignores the mask",
        "mask_fault",
        r"blocks\.1\.attention",
        "The second layer sees the future, the others do not.",
        altered(models.unmasked_layer(1)),
    ),
    Fault(
        "positions without effect",
        "position_fault",
        r"position",
        "The angles of rotary positions are all zero, so one layer of attention sees a bag of tokens.",
        altered(models.unturned, gpt(layers=1)),
    ),
    Fault(
        "labels unshifted",
        "label_leak",
        "",
        "The targets are the inputs, not what follows them.",
        altered(batches.unshifted),
    ),
    Fault(
        "validation is in training",
        "duplicated_data",
        r"validation",
        "The held-out end of the text is a copy of its beginning.",
        leaked_validation,
    ),
    Fault(
        "loader goes round in a circle",
        "duplicated_data",
        "",
        "The same four batches come over and over.",
        altered(batches.repeated(4)),
    ),
    Fault(
        "learned by heart",
        "overfitting",
        "",
        "A short text without order, seen hundreds of times: the validation loss rises while the other falls.",
        by_heart,
    ),
    Fault(
        "token beyond the vocabulary",
        "token_range",
        r"\b12\b",
        "One token of one batch is a number that no embedding has.",
        altered(batches.planted(12, lambda engine: engine.data.vocabulary)),
    ),
    Fault(
        "slow loader",
        "starvation",
        "",
        "Most of the time is spent waiting for batches.",
        altered(batches.slow(0.06), gpt(layers=1, width=16), steps=25),
    ),
    Fault(
        "memory almost full",
        "memory",
        "",
        "The process has nearly all of the memory that it may have; half the batch would do.",
        full_memory,
    ),
]
