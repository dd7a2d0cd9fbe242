"""A task given without data is tested on random tokens."""

from __future__ import annotations

from torch.nn import functional as F

from regard.data import IGNORE_INDEX
from regard.models import GPTConfig
from regard.prove import ModelUnderTest, certify
from regard.tasks import LanguageTask, Term


class Clamps(LanguageTask):
    """Learns ignored targets as token 0."""

    def terms(self, model, batch):
        logits = model(batch.inputs, batch.slots).flatten(0, 1)
        total = F.cross_entropy(logits, batch.targets.flatten().clamp(min=0), reduction="sum")
        return {"next_token": Term(total, self.counts(batch)["next_token"])}


class SkipsTheLast(LanguageTask):
    """Cuts the last target of every row."""

    def terms(self, model, batch):
        logits = model(batch.inputs, batch.slots)[:, :-1].flatten(0, 1)
        targets = batch.targets[:, :-1].flatten()
        total = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
        return {"next_token": Term(total, self.counts(batch)["next_token"])}


class MeanOfMeans(LanguageTask):
    """Averages over the batch and multiplies by the count of all positions."""

    def terms(self, model, batch):
        logits = model(batch.inputs, batch.slots).flatten(0, 1)
        mean = F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORE_INDEX)
        return {"next_token": Term(mean * batch.targets.numel(), self.counts(batch)["next_token"])}


def failed(task: LanguageTask) -> list[str]:
    model = GPTConfig(vocabulary=11, context=16, layers=1, heads=2, width=16, zero_init=False).build()
    return certify(ModelUnderTest(model, task=task), claims=("loss", "accumulation")).failed


def test_faulty_tasks_fail() -> None:
    assert failed(Clamps()) == ["loss"]
    assert "loss" in failed(SkipsTheLast())
    assert failed(MeanOfMeans()) == ["loss", "accumulation"]


def test_the_right_task_holds() -> None:
    assert failed(LanguageTask()) == []
