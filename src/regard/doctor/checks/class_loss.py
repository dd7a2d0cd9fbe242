"""Losses over classes that break what every such loss keeps, and losses in which the rows of a batch are mixed.

The task is called with a stand-in for the model that returns given logits, so its loss is a function of them.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.data import IGNORE_INDEX
from regard.doctor import Check, Findings, ModelPass, TrainingRun
from regard.doctor.calls import difference, record_calls
from regard.prove.batches import Batch, take_rows
from regard.tasks import ArrayClassificationConfig, ClassificationConfig, Measured
from regard.tasks.base import Task

MARGIN = 12.0  # between the logit of the target and the others: its probability is above 0.999 for a hundred classes
ALONE = 8  # rows whose loss is computed alone
PART = 0.05  # of a share, that is more than rounding


class GivenLogits(nn.Module):
    """Returns the same logits for every batch."""

    token_types = False  # an attribute of encoders that tasks read

    def __init__(self, logits: Tensor):
        super().__init__()
        self.logits = logits

    def forward(self, *_: Tensor) -> Tensor:
        return self.logits


class ClassLoss(Check):
    kind, description = "class_loss", "the loss of classes is not the cross entropy"
    rank = 0
    follows = ("random_numbers",)

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._done = False

    def on_start(self) -> Findings:
        run = self.run
        if run.model is not None and run.data is not None and run.usable(batch := run.batch(run.position)):
            yield from self.on_pass(ModelPass(run, batch))

    def on_pass(self, model_pass: ModelPass) -> Findings:
        config = self.run.experiment.task
        if self._done or not isinstance(config, ClassificationConfig | ArrayClassificationConfig):
            return
        self._done = True
        batch = model_pass.batch
        if getattr(batch, "others", None) is not None and self.run.data is not None:  # mixed classes
            batch = next(iter(self.run.data.validation_batches(self.run.experiment.data.batch)), batch)
        if getattr(batch, "others", None) is not None or getattr(batch, "texts", None) is not None:
            return  # windows of texts
        targets = batch.targets
        if targets.shape[1:] != (1,) or not len(config.labels):
            return
        weights = torch.tensor(config.weights or (1.0,) * len(config.labels))
        yield from self._laws(batch, targets.flatten(), weights.to(targets.device))

    def _laws(self, batch: Batch, targets: Tensor, weights: Tensor) -> Findings:
        """The loss as a function of the logits [B, classes]."""
        classes, task = len(weights), self.run.task
        counted = targets != IGNORE_INDEX

        def loss(logits: Tensor) -> Tensor:
            return given_loss(task, batch, logits)

        zero = torch.zeros(len(targets), classes, device=targets.device)
        slope = gradient(loss, zero)
        silent = counted & (slope.abs().sum(1) < 1e-9) & (weights[targets.clamp(min=0)] > 0)
        change = "use cross_entropy(logits, targets, ignore_index=-1) over the axis of the classes"
        if bool(silent.any()):
            lost = sorted({self._name(int(one)) for one in targets[silent]})
            share = float(silent.sum() / counted.sum())
            evidence = f"{share:.0%} of the targets have no gradient: those of {', '.join(lost[:3])}"
            cause = "a class counts as padding, or its weight is zero: the model is never taught it"
            yield self.finding(f"the task, class {lost[0]}", evidence, cause, change)
            return
        generator = torch.Generator().manual_seed(1)
        random = gradient(loss, torch.randn(zero.shape, generator=generator).to(zero))
        if float(random.sum(1).abs().max()) > PART * float(random.abs().max()):
            evidence = "the gradient with respect to the logits of a row does not sum to 0 over the classes"
            cause = "the softmax is over another axis than the classes, such as the rows of the batch, or there is none"
            yield self.finding("the task", evidence, cause, change)
            return
        own = slope.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        wrong = counted & (own > slope.amin(1) + 1e-9) & (not self._smoothing or bool((weights == 1).all()))
        if bool(wrong.any()):
            evidence = f"in {float(wrong.sum() / counted.sum()):.0%} of the rows, to raise the logit of the target is "
            evidence += "not what lowers the loss most"
            cause = "it is computed for other classes: targets are shifted, exchanged or negated"
            yield self.finding("the task", evidence, cause, change)
            return
        yield from self._sizes(loss, zero, targets, weights)
        yield from self._accuracy(batch, targets, classes)

    def _sizes(self, loss: Callable[[Tensor], Tensor], zero: Tensor, targets: Tensor, weights: Tensor) -> Findings:
        """The loss of equal logits is log(classes) for each target."""
        counted = targets[targets != IGNORE_INDEX]
        share = self._smoothing  # of the weights of all classes, as in PyTorch
        want = float(((1 - share) * weights[counted] + share * weights.mean()).sum()) * math.log(len(weights))
        got = float(loss(zero))
        if want and abs(got / want - 1) > PART:
            evidence = f"for equal logits it is {got / max(len(counted), 1):.3g} per target, and log {len(weights)} is "
            evidence += f"{want / max(len(counted), 1):.3g}"
            cause = "it is another function, scaled, or an average of other numbers of targets"
            yield self.finding("the task", evidence, cause, "sum the cross entropy of the counted targets")

    def _accuracy(self, batch: Batch, targets: Tensor, classes: int) -> Findings:
        """The measured accuracy is the share of the targets with the largest logit."""
        task = self.run.task
        if not isinstance(task, Measured):
            return
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(len(targets), classes, generator=generator).to(targets.device)
        counted = targets != IGNORE_INDEX
        half = torch.arange(len(targets), device=targets.device) % 2 == 0
        logits[half & counted, targets[half & counted]] += MARGIN
        _, sums = task.measured(GivenLogits(logits), batch)
        got = task.metrics(sums.double()).get("accuracy")
        want = float((logits.argmax(1) == targets)[counted].float().mean())
        if got is not None and bool(counted.any()) and abs(got - want) > PART:
            evidence = f"for known logits it is reported as {got:.2f}, and {want:.2f} of the targets have the largest"
            cause = "predictions are not the largest logit, or are compared with other targets"
            yield self.finding("the measure accuracy", evidence, cause, "compare logits.argmax(-1) with the targets")

    @property
    def _smoothing(self) -> float:
        return getattr(self.run.experiment.task, "smoothing", 0.0)

    def _name(self, label: int) -> str:
        labels = getattr(self.run.experiment.task, "labels", ())
        return labels[label] if 0 <= label < len(labels) else str(label)


class MixedRows(Check):
    """The loss of a batch is the sum over its rows, each computed alone."""

    kind, description = "mixed_rows", "rows of a batch influence one another"
    rank = 0
    follows = ("random_numbers", "mask_fault", "class_loss", "exploding_gradients", "saturated_units")

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._done = False

    def on_pass(self, model_pass: ModelPass) -> Findings:
        if not model_pass.deep or self._done or model_pass.model.carries_state or not model_pass.independent_rows:
            return
        self._done = True
        batch = model_pass.few
        rows = min(len(batch.inputs), ALONE)
        batch = take_rows(batch, slice(rows))
        if rows < 2 or getattr(batch, "texts", None) is not None or len(batch.targets) != rows:
            return
        whole = model_pass.term(batch)
        if not whole.additive:
            return
        alone = [float(model_pass.total(take_rows(batch, [row]))) for row in range(rows)]
        size = sum(map(abs, alone))
        if abs(float(whole.total) - sum(alone)) > model_pass.rounding * max(size, 1e-6):
            evidence = f"the loss of {rows} rows is {float(whole.total):.5g}, and {sum(alone):.5g} if each is alone"
            where = self._first_module(model_pass, batch)
            cause = (
                "a norm, a softmax or a mean goes over the rows of a batch, or the axes of rows and time are exchanged"
            )
            change = "normalize over channels or classes, never over axis 0; [B, N, C] is batch first"
            yield self.finding(where or "the loss: no module of the model", evidence, cause, change)

    def _first_module(self, model_pass: ModelPass, batch: Batch) -> str | None:
        """The first module whose output for the last row is another one if that row is alone."""
        one = take_rows(batch, [len(batch.inputs) - 1])
        together, alone = (record_calls(model_pass.model, lambda b=b: model_pass.total(b)) for b in (batch, one))
        rows = len(batch.inputs)
        for ours, theirs in zip(together, alone, strict=False):
            whole, own = ours.output, theirs.output
            same = ours.name == theirs.name and whole.shape[1:] == own.shape[1:] and len(whole) == rows * len(own)
            if same and difference(whole[-len(own) :], own) > model_pass.rounding:
                return ours.name
        return None


def given_loss(task: Task, batch: Batch, logits: Tensor) -> Tensor:
    """The summed loss for these logits."""
    return next(iter(task.terms(GivenLogits(logits), batch).values())).total


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The derivative of a loss with respect to the logits."""
    with torch.enable_grad():
        point = at.clone().requires_grad_()
        (found,) = torch.autograd.grad(loss(point), point)
    return found
