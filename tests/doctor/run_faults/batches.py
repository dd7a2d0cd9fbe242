"""Faults of batches and of evaluation: other targets, other text, other modes."""

from __future__ import annotations

from typing import Any

import torch

from regard.data import TextBatch
from regard.train.engine import Engine
from run_faults.kit import Fault, Seen, changed, dataset
from run_faults.sabotage import changed_output
from run_faults.steps import fault


def two_ahead(engine: Engine) -> None:
    """Targets are the tokens after the next ones."""

    def change(number: int, batch: TextBatch, _: Engine) -> TextBatch:
        return TextBatch(batch.inputs[:, :-1], batch.targets[:, 1:])

    changed(change)(engine)


def some_replaced(engine: Engine) -> None:
    """Every tenth target is another token."""

    def change(number: int, batch: TextBatch, _: Engine) -> TextBatch:
        targets = batch.targets.clone()
        targets[:, ::10] = (targets[:, ::10] + 1) % engine.model.config.vocabulary
        return batch._replace(targets=targets)

    changed(change)(engine)


def half_ignored(engine: Engine) -> None:
    """The first half of every row does not count."""

    def change(number: int, batch: TextBatch, _: Engine) -> TextBatch:
        targets = batch.targets.clone()
        targets[:, : targets.shape[1] // 2] = -1
        return batch._replace(targets=targets)

    changed(change)(engine)


def shuffled(engine: Engine) -> None:
    """The tokens of every row come in another order."""

    def change(number: int, batch: TextBatch, _: Engine) -> TextBatch:
        rows = torch.cat([batch.inputs, batch.targets[:, -1:]], dim=1)
        rows = rows[:, torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(number))]
        return batch._replace(inputs=rows[:, :-1], targets=rows[:, 1:])

    changed(change)(engine)


def first_tenth(engine: Engine) -> None:
    """Windows are drawn from the first tenth of the text."""
    data = dataset(engine)
    plain = data.offsets
    data.offsets = lambda position, *, seed, count: plain(position, seed=seed, count=count) // 10


def held_out(engine: Engine) -> None:
    """Batches are windows of the validation part."""
    data = dataset(engine)
    part = data.parts.validation
    plain = data.offsets

    def offsets(position: int, *, seed: int, count: int) -> Any:
        return part.start + plain(position, seed=seed, count=count) % (part.size - data.context)

    data.offsets = offsets


def noisy(engine: Engine) -> None:
    """A layer adds noise, in evaluation too."""
    changed_output("blocks.0", lambda out: out + 0.1 * torch.randn_like(out))(engine)


def half_validated(engine: Engine) -> None:
    """The validation loss is divided by twice the number of targets."""
    data = dataset(engine)
    plain = engine.task.counts
    engine.task.counts = lambda batch: {  # type: ignore[method-assign]
        name: count * (1 if engine.model.training else 2) for name, count in plain(batch).items()
    }
    del data


def never_evaluates(engine: Engine) -> None:
    """The model stays in training mode while it is evaluated."""
    engine.model.eval = lambda: engine.model  # type: ignore[method-assign]


def aligned(seen: Seen) -> bool:
    batch = seen.batch()
    return torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1]) and bool((batch.targets >= 0).all())


def drawn(share: float) -> Any:
    return lambda seen: "offsets" in vars(seen.ended.engine.data) and share > 0


FAULTS: list[Fault] = [
    fault("targets two ahead", "target_fault", "targets", two_ahead, lambda seen: not aligned(seen)),
    fault("every tenth target replaced", "target_fault", "targets", some_replaced, lambda seen: not aligned(seen)),
    fault("half of the targets ignored", "target_fault", "targets", half_ignored, lambda seen: not aligned(seen)),
    fault(
        "tokens shuffled",
        "text_fault",
        "training batches",
        shuffled,
        lambda seen: "batch" in vars(seen.ended.engine.data),
    ),
    fault("first tenth of the text", "data_fault", "batches", first_tenth, drawn(0.1)),
    fault("trained on the validation part", "data_fault", "batches", held_out, drawn(0.05)),
    fault(
        "noise in evaluation",
        "random_numbers",
        r"blocks\.0",
        noisy,
        lambda seen: bool(seen.model.get_submodule("blocks.0")._forward_hooks),
    ),
    fault(
        "validation divided twice",
        "validation_loss",
        "validation",
        half_validated,
        lambda seen: "counts" in vars(seen.ended.engine.task),
    ),
    fault(
        "evaluated in training mode",
        "wrong_mode",
        "",
        never_evaluates,
        lambda seen: "eval" in vars(seen.model),
    ),
]
