"""Measurements during training: samples, attention entropy by head, gradient norms by layer.

They are written to the run folder for the report. Training is not changed by a bit: measurements run in evaluation mode
without gradients, use their own random generator, and restore every module's mode.
"""

import math
import sys
from typing import NamedTuple

import torch
from torch import nn

from regard.attention import BackendRefused
from regard.look import attentions, heads
from regard.models.base import LanguageModel, Model, Seq2SeqModel
from regard.parallel.tensors import is_sharded
from regard.report.probes import Probe, find_probe
from regard.runs.disk import JsonObject
from regard.train import Diverged, Experiment, Observer, TrainingStart, TrainingStep

#: The share of the training time that a sample may take; a short one is drawn in any case.
SHARE = 0.05


class Measurements(NamedTuple):
    """Records for samples.jsonl and metrics.jsonl, if there are any."""

    sample: JsonObject | None = None
    metrics: JsonObject | None = None


class ModelMeasurements(Observer):
    """Measures at the start, at every evaluation and at the end; gradient norms whenever the loop logs."""

    def started(self, start: TrainingStart) -> None:
        """Find the probe, and measure a new model."""
        self._run, self._model = start.run, start.model
        self._train = start.experiment.train
        # A sharded model runs on all ranks or none, and observers run on the first rank only.
        sharded = any(is_sharded(parameter) for parameter in start.model.parameters())
        self._layers = {} if sharded else layers(start.model)
        self._probe: Probe | None = None
        if not sharded:
            self._probe = find_probe(start.data, start.model.config, start.device, start.experiment.seed)
        measured = start.step > 0 or any(record["step"] == 0 for record in start.run.samples())
        # Written with the first step, so that a run that fails before it stays empty and is not kept.
        self._first = Measurements() if measured else self._measure(0)

    def changed(self, experiment: Experiment) -> None:
        """Measure by the new numbers."""
        self._train = experiment.train

    def stepped(self, step: TrainingStep) -> None:
        """Write the measurements that are due."""
        self._write(self._first)
        self._first = Measurements()
        train, last = self._train, step.step == self._train.steps
        if self._layers and (step.step == 1 or last or step.step % train.log_every == 0):
            self._run.log({"step": step.step, "gradients": gradient_norms(self._layers, step.norm)})
        if last or (train.evaluate_every and step.step % train.evaluate_every == 0):
            self._write(self._measure(step.step, step.seconds))

    def failed(self, error: BaseException) -> None:
        """Record a divergence."""
        if isinstance(error, Diverged) and self._run.metrics():  # raised by a step, so `started` was called
            self._run.log({"step": error.step, "diverged": str(error), "module": error.module})

    def _write(self, measurements: Measurements) -> None:
        if measurements.sample is not None:
            self._run.sample(measurements.sample)
        if measurements.metrics is not None:
            self._run.log(measurements.metrics)

    def _measure(self, step: int, trained: float = 0.0) -> Measurements:
        if self._probe is None:
            return Measurements()
        try:
            return measure(self._model, self._probe, step, SHARE * trained)
        except BackendRefused:  # training raises it too
            self._probe = None
        except Exception as problem:  # a model that cannot be measured can still be trained
            self._probe = None
            kind = type(problem).__name__
            lost = "training continues without samples and attention statistics"
            print(f"measuring the model failed ({kind}: {problem}); {lost}", file=sys.stderr)
        return Measurements()


def measure(model: Model, probe: Probe, step: int, seconds: float = math.inf) -> Measurements:
    """A sample of the model, for about so many ``seconds``, and the entropy of every head."""
    decodable = isinstance(model, LanguageModel | Seq2SeqModel) and model.decodable
    sample = {"step": step, **probe.sample(model, seconds)} if decodable else None
    entropy: dict[str, list[float]] = {}
    spread: dict[str, list[float]] = {}
    for head in heads(attentions(model, lambda: probe.forward(model))):
        entropy.setdefault(head.name, []).append(round(head.entropy, 5))
        spread.setdefault(head.name, []).append(round(head.spread, 5))
    return Measurements(sample, {"step": step, "entropy": entropy, "spread": spread} if entropy else None)


def layers(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The parameters by layer: "blocks.0" for an element of a module list, "embed" for a single module."""
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
        groups.setdefault(".".join(parts[: number + 1]), []).append(parameter)
    return groups


@torch.no_grad()
def gradient_norms(layers: dict[str, list[nn.Parameter]], norm: float) -> dict[str, float]:
    """The gradient norm of each layer before clipping, given the norm of the whole gradient before clipping."""
    groups = {name: [p.grad for p in members if p.grad is not None] for name, members in layers.items()}
    groups = {name: gradients for name, gradients in groups.items() if gradients}
    norms = torch.stack([torch.nn.utils.get_total_norm(gradients).float() for gradients in groups.values()]).tolist()
    clipped = math.hypot(*norms)
    return {n: round(value * norm / clipped, 7) if clipped else 0.0 for n, value in zip(groups, norms, strict=True)}
