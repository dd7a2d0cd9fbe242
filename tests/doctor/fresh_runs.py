"""Ten more faults of training runs, each of another kind, to measure whatever looks for faults: it has not seen them.

They are made as those of run_faults.py and unseen_runs.py are, and no cause is one of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fresh_parts as parts
import torch
from run_faults import Fault, altered, gpt, training
from run_kit import Case
from unseen_runs import translation

from regard.models import BahdanauConfig, RecurrentConfig, Seq2SeqConfig, TransformerConfig
from regard.nn import NoNormConfig, PostNormConfig
from regard.train.device import memory

ROOM = 240 * 2**20  # bytes that a process may have on top of what it has
TRANSLATOR: dict[str, Any] = {"context": 64, "layers": 2, "heads": 2, "width": 32, "dropout": 0.0}
SEQ2SEQ = Seq2SeqConfig(context=64, width=64, dropout=0.0, attention=BahdanauConfig())


def mistranslated(sabotage: parts.Sabotage, **changes: Any) -> Callable[[Path], Case]:
    """The small sound translation, perhaps by another Transformer, with a sabotage."""
    return lambda folder: Case(translation(folder, TransformerConfig(**{**TRANSLATOR, **changes})), sabotage)


def deep_without_shortcuts(folder: Path) -> Case:
    deep: dict[str, Any] = {"cell": "gru", "context": 32, "layers": 8, "width": 32}
    bare = RecurrentConfig(**deep, residual=False, norm=NoNormConfig())
    return Case(training(folder, model=bare), sound=training(folder, model=RecurrentConfig(**deep)))


def read_twice(folder: Path) -> Case:
    sound = translation(folder)
    longer = replace(sound.train, steps=150, evaluate_every=50)  # to copy takes some learning
    return Case(replace(sound, train=longer), parts.one_column)


def leaking(folder: Path) -> Case:
    experiment = training(folder, train={"steps": 40}, batch=32)
    return Case(experiment, parts.hoarding, limit=memory(torch.device("cpu")) + ROOM)


FRESH: list[Fault] = [
    Fault(
        "deep without shortcuts",
        "vanishing_gradients",
        r"blocks\.[0-6]\b",
        "Eight GRUs one on the other, with neither sums around them nor norms between them.",
        deep_without_shortcuts,
    ),
    Fault(
        "embeddings scaled twice",
        "attention_collapse",
        r"(?:encoder|decoder)\.0\.attention",
        "Embeddings of unit variance times the root of the width, and no norm before the first layer.",
        mistranslated(parts.unit_embeddings, tied=False, block=PostNormConfig()),
    ),
    Fault(
        "columns exchanged",
        "loss_spike",
        r"\b37\b",
        "In one batch, source and translation have changed places.",
        lambda folder: Case(translation(folder, SEQ2SEQ), parts.exchanged(37)),
    ),
    Fault(
        "blank line",
        "non_finite",
        r"encoder\.0\.attention|\b18\b",
        "One source is empty, and the encoder hides padding by hand: a softmax over nothing.",
        mistranslated(parts.blank_line(18)),
    ),
    Fault(
        "decay upside down",
        "rate_too_high",
        "",
        "A rate that should shrink with every step grows with it instead; the log has the rate that was meant.",
        altered(parts.upside_down(1.12), RecurrentConfig(cell="gru", context=32, layers=2, width=32)),
    ),
    Fault(
        "widened with zeros",
        "dead_units",
        r"decoder\.1\.feedforward",
        "A network grown to four times its width by zeros on both sides: the new units never get a gradient.",
        mistranslated(parts.widened("decoder.1.feedforward", 32)),
    ),
    Fault(
        "positions of rows",
        "position_fault",
        r"position|encoder\b",
        "Positions are counted along the wrong axis: the encoder sees a bag of tokens.",
        mistranslated(parts.positions_of_rows),
    ),
    Fault(
        "one column read twice",
        "label_leak",
        "",
        "The source that a translation is made from is the translation itself.",
        read_twice,
    ),
    Fault(
        "stalls between files",
        "starvation",
        "",
        "Every eighth batch is waited for, for longer than the eight of them take.",
        altered(parts.stalled(8, 0.5), gpt(layers=1, width=16), steps=40),
    ),
    Fault(
        "outputs hoarded",
        "memory",
        "",
        "Hooks keep what every module gives, so that memory grows from step to step until none is left.",
        leaking,
    ),
]
