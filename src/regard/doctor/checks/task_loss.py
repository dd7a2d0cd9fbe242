"""A loss that is not the cross entropy of the model's logits and the batch's targets."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import dump
from regard.data import IGNORE_INDEX, PairBatch, TextBatch
from regard.doctor import Check, Findings, SidePass
from regard.doctor.side_pass import first_rows
from regard.models import LanguageModel, Seq2SeqModel
from regard.prove.batches import Batch
from regard.tasks import LanguageConfig, TranslationConfig

#: The difference of the two sums, relative to them: another order of summation in float32, and logits in 16 bits.
APART, APART_16_BITS = 1e-3, 2e-2
ROWS, LENGTH = 2, 64


class TaskLoss(Check):
    """Computes the loss a second time from the logits, in evaluation and in training mode."""

    kind, description = "task_loss", "the loss is not the cross entropy of logits and targets"
    rank = 0
    follows = ("random_numbers",)

    def on_start(self) -> Findings:
        if self.run.model is not None and self.run.data is not None:
            batch = self.run.batch(self.run.position)
            if self.run.usable(batch):
                yield from self.on_model(SidePass(self.run, batch))

    def on_model(self, side_pass: SidePass) -> Findings:
        if not side_pass.deep or not isinstance(self.run.experiment.task, LanguageConfig | TranslationConfig):
            return
        batch = first_rows(side_pass.few, ROWS, LENGTH)
        counted = int((batch.targets != IGNORE_INDEX).sum())
        modes = [False] if side_pass.model.carries_state else [True] if self.run.history.steps else [False, True]
        for training in modes:
            got = float(side_pass.total(batch, training))
            with side_pass.mode(training):
                logits = self._logits(side_pass, batch)
            smoothing = float(dump(self.run.experiment)["task"].get("smoothing", 0.0)) if training else 0.0
            want, plain = (_summed(logits, batch.targets, one) for one in (smoothing, 0.0))
            apart = APART if self.run.dtype == torch.float32 else APART_16_BITS
            count = float(next(iter(self.run.task.counts(batch).values())))
            if not math.isfinite(got) or (abs(got - want) <= apart * abs(want) and count == counted):
                continue
            mode = "training" if training else "evaluation"
            evidence = f"in {mode} it is {got:.5g} over {count:.0f} targets, and {want:.5g} over {counted} from logits"
            ratio, uniform = got / want if want else math.inf, _summed(logits, batch.targets, 1.0)
            cause = (
                f"it is {ratio:.3g} times too large: scaled, or divided by another number of targets or micro-batches"
            )
            smoothed = (got - plain) / (uniform - plain) if uniform > plain else 0.0
            if 0 < smoothed <= 1 and count == counted:
                cause = f"some of it does not come from the targets: label smoothing of {smoothed:.2g} would give it"
            change = "return the summed cross entropy of the counted targets, and their number, in both modes"
            yield self.finding("the task", evidence, cause, change)
            return

    def _logits(self, side_pass: SidePass, batch: Batch) -> Tensor:
        model = side_pass.model
        with self.run.autocast():
            if isinstance(batch, PairBatch):
                assert isinstance(model, Seq2SeqModel)
                return model.head(model.features(batch.inputs, batch.source, batch.source_lengths)).float()
            assert isinstance(model, LanguageModel)
            slots = batch.slots if isinstance(batch, TextBatch) else None
            return model.head(model.features(batch.inputs, slots)).float()


def _summed(logits: Tensor, targets: Tensor, smoothing: float) -> float:
    logits, targets = logits.flatten(0, -2), targets.flatten()
    total = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)
    return float(total)
