"""Faults of the data, its targets, and the loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from run_faults.kit import words
from torch.nn import functional as F

from held_out.parts import DATA, TASKS, HeldOut, changed_task, changed_text, experiment
from regard.data import IGNORE_INDEX, TextConfig
from regard.data.texts.text import TextData
from regard.tasks import LanguageTask, Term
from regard.train import Experiment


class Edited(TextData):
    """Training and validation batches go through `edit`."""

    def batch(self, *args: Any, **settings: Any) -> Any:
        return self.edit(super().batch(*args, **settings))

    def validation_batches(self, *args: Any, **settings: Any) -> Iterator[Any]:
        return map(self.edit, super().validation_batches(*args, **settings))

    def edit(self, batch: Any) -> Any:
        raise NotImplementedError


class NotShifted(Edited):
    """The targets are the inputs."""

    def edit(self, batch: Any) -> Any:
        return batch._replace(targets=torch.where(batch.targets == IGNORE_INDEX, batch.targets, batch.inputs))


class ShiftedTwice(Edited):
    """Data set and loss both shift: the token after the next one is predicted."""

    def edit(self, batch: Any) -> Any:
        return batch._replace(targets=F.pad(batch.targets[:, 1:], (0, 1), value=IGNORE_INDEX))


class PaddingCounted(Edited):
    """Rows hold 6 to 15 tokens, then padding that is also a target: two thirds of the loss is padding."""

    def edit(self, batch: Any) -> Any:
        length = 6 + batch.inputs.sum(1, keepdim=True) % 10
        pad = torch.arange(batch.inputs.shape[1]) >= length
        return batch._replace(inputs=batch.inputs.masked_fill(pad, 0), targets=batch.targets.masked_fill(pad, 0))


class FourBatches(TextData):
    """The sampler is seeded again every four steps."""

    def batch(self, step: int, **settings: Any) -> Any:
        return super().batch(step % 4, **settings)


class OneWindow(TextData):
    """All rows of a batch are the same window."""

    def offsets(self, *args: Any, **settings: Any) -> Any:
        found = super().offsets(*args, **settings)
        found[:] = found[0]
        return found


class OtherAlphabet(TextData):
    """The table of characters was made again, in another order, for the validation part."""

    def validation_batches(self, *args: Any, **settings: Any) -> Iterator[Any]:
        other = torch.randperm(self.vocabulary, generator=torch.Generator().manual_seed(3))
        for batch in super().validation_batches(*args, **settings):
            targets = torch.where(batch.targets < 0, batch.targets, other[batch.targets.clamp(min=0)])
            yield batch._replace(inputs=other[batch.inputs], targets=targets)


class NotDivided(LanguageTask):
    """The mean losses of four micro-batches are added, in training only."""

    def terms(self, model: Any, batch: Any) -> dict[str, Term]:
        found = super().terms(model, batch)
        term = found["next_token"]
        return {"next_token": term._replace(total=term.total * 4)} if model.training else found


class Smoothed(LanguageTask):
    """Label smoothing of 0.9 where 0.1 was meant."""

    def terms(self, model: Any, batch: Any) -> dict[str, Term]:
        smoothing = 0.9 if model.training else 0.0
        logits, targets = model(batch.inputs, batch.slots).flatten(0, 1), batch.targets.flatten()
        total = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)
        return {"next_token": Term(total, self.counts(batch)["next_token"])}


def validation_is_training(folder: Path) -> Experiment:
    """valid.txt is the beginning of train.txt."""
    parts, content = folder / "parts", words(1, 80_000)
    parts.mkdir()
    (parts / "train.txt").write_text(content, encoding="utf-8")
    (parts / "valid.txt").write_text(content[:8000], encoding="utf-8")
    return experiment(folder, data=TextConfig(path=str(parts), batch=8))


DATA |= {
    "not shifted": NotShifted,
    "shifted twice": ShiftedTwice,
    "padding": PaddingCounted,
    "four batches": FourBatches,
    "one window": OneWindow,
    "other alphabet": OtherAlphabet,
}
TASKS |= {"not divided": NotDivided, "smoothed": Smoothed}
FAULTS = {
    "targets not shifted": HeldOut("target_fault", "targets", changed_text("not shifted")),
    "targets shifted twice": HeldOut("target_fault", "targets", changed_text("shifted twice")),
    "padding counted": HeldOut("target_fault", "targets", changed_text("padding")),
    "validation is training": HeldOut("data_fault", "validation", validation_is_training),
    "four batches": HeldOut("data_fault", "training batches", changed_text("four batches", steps=250)),
    "rows all equal": HeldOut("data_fault", "training batches", changed_text("one window")),
    "validation alphabet": HeldOut("text_fault", "validation", changed_text("other alphabet")),
    "accumulation not divided": HeldOut("task_loss", "the task", changed_task("not divided", accumulate=4, steps=100)),
    "smoothing of 0.9": HeldOut("task_loss", "the task", changed_task("smoothed")),
}
