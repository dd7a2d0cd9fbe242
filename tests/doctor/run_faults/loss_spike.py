"""Faults that make the loss jump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention import WindowConfig
from regard.data import PairBatch, TextBatch
from regard.data.translation.encoded_sentences import padded
from regard.models import BahdanauConfig, RecurrentConfig, Seq2SeqConfig
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
    gpt,
    noise,
    training,
    translation,
    words,
)

SEQ2SEQ = Seq2SeqConfig(context=64, width=64, dropout=0.0, attention=BahdanauConfig())


def poisoned(number: int) -> Sabotage:
    """One batch is noise: its targets have nothing to do with its inputs."""

    def change(position: int, batch: TextBatch, engine: Engine) -> TextBatch:
        if position != number:
            return batch
        generator = torch.Generator().manual_seed(number)
        shape, vocabulary = batch.targets.shape, dataset(engine).vocabulary
        return batch._replace(targets=torch.randint(vocabulary, shape, generator=generator))

    return changed(change)


def poisoned_part(folder: Path) -> Case:
    experiment = training(folder, train={"accumulate": 2, "steps": 50}, batch=4)
    return Case(experiment, poisoned(81))


def strange_stretch(folder: Path) -> Case:
    """One row reads the text from its beginning to its end; around its 41st window every letter is drawn at random."""
    model = RecurrentConfig(cell="lstm", context=128, layers=1, width=64, carry=True)
    text, first, last = words(1, 9000), 40 * 128, 42 * 128
    torn = text[:first] + noise(1, last - first) + text[last:]
    sound = training(folder, text, model, batch=1, order="consecutive")
    return Case(training(folder, torn, model, batch=1, order="consecutive"), sound=sound)


def exchanged(number: int) -> Sabotage:
    """The two columns of one batch have changed places: it translates back."""

    def sabotage(engine: Engine) -> None:
        data, plain = dataset(engine), dataset(engine).batch

        def batch(step: int, **named: Any) -> PairBatch:
            if step != number:
                return plain(step, **named)
            pairs = data._train.pick(data._buckets.rows(step, **named))
            return padded(pairs.target, pairs.source, data.specials, data.context)

        data.batch = batch

    return sabotage


def miscomputed(path: str, update: int) -> Sabotage:
    """In one update a faulty device gives noise for a module's output."""

    def sabotage(engine: Engine) -> None:
        def after(module: nn.Module, given: Any, out: Tensor) -> Tensor | None:
            if not module.training or engine.progress.step != update:
                return None
            return 100 * torch.randn(out.shape, generator=torch.Generator().manual_seed(update))

        engine.model.get_submodule(path).register_forward_hook(after)

    return sabotage


def one_update_miscomputed(seen: Seen) -> bool:
    """The loss of one update is far too high, that of the next is not, and neither is that of the same batch again."""
    engine, losses, batch = seen.ended.engine, seen.record.losses, seen.batch(35)
    with torch.no_grad():
        again = float(engine.terms(engine.model, batch)["next_token"].total) / batch.targets.numel()
    return seen.spike(35) > 1.0 and max(again, losses[36]) < losses[35] - 1.0


def drawn_anew(path: str, update: int) -> Sabotage:
    """The run was taken up again at one update, and one matrix, of another name in the checkpoint, was not restored."""

    def sabotage(engine: Engine) -> None:
        plain, weight = engine.optimizer.step, engine.model.get_parameter(path)

        @torch.no_grad()
        def step(factor: float) -> None:
            plain(factor)
            if engine.progress.step == update - 1:
                nn.init.normal_(weight, std=0.02, generator=torch.Generator().manual_seed(update))

        engine.optimizer.step = step

    return sabotage


def renamed(folder: Path) -> Case:
    model = gpt(tied=False, attention=WindowConfig(size=8))
    return Case(training(folder, model=model, tokenizer=TOKENS), drawn_anew("unembed.weight", 45))


def head_forgotten(seen: Seen) -> bool:
    """One update's loss is that of a guess, and the next ones fall from there."""
    losses = seen.record.losses
    return abs(losses[45] - np.log(seen.model.config.vocabulary)) < 0.1 and seen.spike(45) > 3 and losses[55] > 3


FAULTS: list[Fault] = [
    Fault(
        "poisoned batch",
        "loss_spike",
        r"\b41\b",
        "The targets of one batch are noise.",
        altered(poisoned(41)),
        shows=lambda seen: seen.spike(41) > 1.0,
        quick=True,
    ),
    Fault(
        "poisoned micro-batch",
        "loss_spike",
        r"\b81\b",
        "The targets of one micro-batch are noise, and an update takes two.",
        poisoned_part,
        shows=lambda seen: seen.spike(81 // 2) > 0.5,
    ),
    Fault(
        "strange stretch of text",
        "loss_spike",
        r"\b(?:39|40|41)\b",
        "Text is read in order, and a stretch in its middle is no text.",
        strange_stretch,
        shows=lambda seen: seen.spike(40) > 1.0,
        listed=False,
    ),
    Fault(
        "columns exchanged",
        "loss_spike",
        r"\b37\b",
        "In one batch, source and translation have changed places.",
        lambda folder: Case(translation(folder, SEQ2SEQ), exchanged(37)),
        shows=lambda seen: seen.spike(37) > 1.0,
        listed=False,
    ),
    Fault(
        "faulty device",
        "loss_spike",
        r"\b35\b|blocks\.1\b",
        "In one update a device miscomputes what a layer gives; no batch is at fault.",
        altered(miscomputed("blocks.1.attention", 35), gpt(attention=WindowConfig(size=8))),
        shows=one_update_miscomputed,
        listed=False,
    ),
    Fault(
        "head not restored",
        "foreign_writes",
        "unembed",
        "Taken up again, the run has all weights but those of its head, which the checkpoint has by another name.",
        renamed,
        shows=head_forgotten,
        listed=False,
    ),
]
