"""A loss that is not the cross entropy of the model's logits and the batch's targets."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import IGNORE_INDEX, PairBatch, TextBatch, TextData
from regard.doctor import Check, Findings, SidePass
from regard.doctor.model_pass import first_rows
from regard.models import LanguageModel, Seq2SeqModel
from regard.prove.batches import Batch, take_rows
from regard.tasks import LanguageConfig, MaskedTokensConfig, TranslationConfig

#: The difference of the two sums, relative to them: another order of summation in float32, and logits in 16 bits.
APART, APART_16_BITS = 1e-3, 2e-2
ROWS, LENGTH = 2, 64
ALONE, NAMED = 24, 3  # the most frequent tokens, each of which is the only target of a pass; tokens in a finding
WHOLE = 0.01  # how far a sum of probabilities is from 1, in 16 bits


class TaskLoss(Check):
    """Computes the loss a second time from the logits, in evaluation and in training mode."""

    kind, description = "task_loss", "the loss is not the cross entropy of logits and targets"
    rank = 0
    follows = ("random_numbers", "model_differs")

    def on_start(self) -> Findings:
        if self.run.model is not None and self.run.data is not None:
            batch = self.run.batch(self.run.position)
            if self.run.usable(batch):
                yield from self.on_model(SidePass(self.run, batch))

    def on_model(self, side_pass: SidePass) -> Findings:
        if not side_pass.deep:
            return
        if not isinstance(self.run.experiment.task, LanguageConfig | TranslationConfig):
            yield from self._left_out(side_pass)
            return
        batch = first_rows(side_pass.few, ROWS, LENGTH)
        counted = int((batch.targets != IGNORE_INDEX).sum())
        modes = [False] if side_pass.model.carries_state else [True] if self.run.history.steps else [False, True]
        for training in modes:
            got = float(side_pass.total(batch, training))
            logits = self._logits(side_pass, batch, training)
            if probabilities(logits):
                evidence = f"its {logits.shape[-1]:,} outputs are never negative, and those of each token sum to 1"
                cause = "softmax is applied twice: the head returns probabilities, and the cross entropy takes logits"
                yield self.finding("the head", evidence, cause, "return logits: remove the softmax from the head")
                return
            smoothing = float(self.run.settings["task"].get("smoothing", 0.0)) if training else 0.0
            want = _summed(logits, batch.targets, smoothing)
            apart = APART if self.run.dtype == torch.float32 else APART_16_BITS
            count = float(next(iter(self.run.task.counts(batch).values())))
            if not math.isfinite(got) or (abs(got - want) <= apart * abs(want) and count == counted):
                continue
            mode = "training" if training else "evaluation"
            evidence = f"in {mode} it is {got:.5g} over {count:.0f} targets, and {want:.5g} over {counted} from logits"
            ratios = [
                float(side_pass.total(take_rows(batch, [row]), training))
                / _summed(logits[row], batch.targets[row], smoothing)
                for row in range(len(batch.inputs))
            ]
            cause = (
                f"it is {got / want:.3g} times that: scaled, or divided by another number of targets or micro-batches"
            )
            if max(ratios) - min(ratios) > apart * max(map(abs, ratios)):
                cause = "it is another function of them: targets shifted or weighted, a second softmax, an added term"
            plain, uniform = (_summed(logits, batch.targets, one) for one in (0.0, 1.0))
            smoothed = (got - plain) / (uniform - plain) if uniform > plain else 0.0
            if 0 < smoothed <= 1 and count == counted:
                cause = f"some of it does not come from the targets: label smoothing of {smoothed:.2g} would give it"
            change = "return the summed cross entropy of the counted targets, and their number, in both modes"
            yield self.finding("the task", evidence, cause, change)
            return

    def _left_out(self, side_pass: SidePass) -> Findings:
        """Tokens that a task of the user's own does not count, or whose loss is zero, in a text where all count."""
        batch = first_rows(side_pass.few, ROWS, LENGTH)
        if not isinstance(self.run.data, TextData) or isinstance(self.run.experiment.task, MaskedTokensConfig):
            return
        tokens, counts = batch.targets[batch.targets != IGNORE_INDEX].unique(return_counts=True)
        left_out, whole = {}, 0
        for place in counts.argsort(descending=True)[:ALONE].tolist():
            token, count = int(tokens[place]), int(counts[place])
            alone = batch._replace(targets=batch.targets.where(batch.targets == token, IGNORE_INDEX))
            with side_pass.mode():
                term = next(iter(self.run.terms(alone).values()))
            if not float(term.count) or not float(term.total):
                left_out[token] = count
            whole += float(term.count) == count
        if left_out and whole:
            named = ", ".join(f"{token} ({self._text(token)!r})" for token in list(left_out)[:NAMED])
            share = sum(left_out.values()) / int(counts.sum())
            evidence = f"{share:.0%} of {int(counts.sum())} targets do not count: those that are token {named}"
            cause = f"the task ignores a real token as padding; only targets of {IGNORE_INDEX} do not count"
            yield self.finding("the task", evidence, cause, f"ignore_index={IGNORE_INDEX} (regard.data.IGNORE_INDEX)")

    def _text(self, token: int) -> str:
        data = self.run.data
        return data.tokenizer.decode([token]) if isinstance(data, TextData) and token < data.tokenizer.size else ""

    def _logits(self, side_pass: SidePass, batch: Batch, training: bool) -> Tensor:
        model = side_pass.model
        with side_pass.mode(training), self.run.autocast():
            if isinstance(batch, PairBatch):
                assert isinstance(model, Seq2SeqModel)
                return model.head(model.features(batch.inputs, batch.source, batch.source_lengths)).float()
            assert isinstance(model, LanguageModel)
            slots = batch.slots if isinstance(batch, TextBatch) else None
            return model.head(model.features(batch.inputs, slots)).float()


def probabilities(outputs: Tensor) -> bool:
    """Whether the outputs [..., V] are probabilities of several classes."""
    sums = outputs.sum(-1)
    return outputs.shape[-1] > 1 and bool((outputs >= 0).all()) and bool(((sums - 1).abs() < WHOLE).all())


def _summed(logits: Tensor, targets: Tensor, smoothing: float) -> float:
    logits, targets = logits.flatten(0, -2), targets.flatten()
    total = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)
    return float(total)
