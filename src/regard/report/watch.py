"""Measures taken while a model trains: what it writes, where its heads look, how large its gradients are by layer.

They go into the run folder, for the report. The run itself does not change by a bit: looking happens in evaluation mode
without gradients, draws from a generator of its own, and leaves every mode as it was.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.attention import Refused
from regard.look import attentions, heads
from regard.report.subject import Subject, find_subject
from regard.train import Diverged, Observer, Start, Step
from regard.train.shard import is_sharded


class Looks(NamedTuple):
    """What was seen, for samples.jsonl and metrics.jsonl."""

    samples: Sequence[dict[str, Any]] = ()
    metrics: Sequence[dict[str, Any]] = ()


class Watch(Observer):
    """Looks at the start, at every evaluation and at the end; at the gradient whenever the loop logs."""

    def started(self, start: Start) -> None:
        """Find what can be looked at, and look at a new model."""
        self._run, self._model = start.run, start.model
        self._train = start.experiment.train
        # A model in shards runs on all ranks or on none, and this is told on the first only.
        self._whole = not any(is_sharded(parameter) for parameter in start.model.parameters())
        self._layers = layers(start.model) if self._whole else {}
        self._subject: Subject | None = None
        if self._whole:
            experiment: Any = start.experiment
            self._subject = find_subject(start.data, experiment.model, start.device, experiment.seed)
        seen = start.step > 0 or any(record["step"] == 0 for record in start.run.samples())
        # Written with the first step: a run that fails before it has nothing to show, and is not kept.
        self._first = Looks() if seen else self._look(0)

    def stepped(self, step: Step) -> None:
        """Measure what is due."""
        self._write(self._first)
        self._first = Looks()
        train, last = self._train, step.step == self._train.steps
        if self._layers and (step.step == 1 or last or step.step % train.log_every == 0):
            self._run.log({"step": step.step, "gradients": gradient_norms(self._layers, step.norm)})
        if last or (train.evaluate_every and step.step % train.evaluate_every == 0):
            self._write(self._look(step.step))

    def failed(self, error: BaseException) -> None:
        """Note a divergence, which else nobody would find in the folder."""
        if isinstance(error, Diverged) and self._run.metrics():  # raised by a step, so this has started
            self._run.log({"step": error.step, "diverged": str(error), "module": error.module})

    def _write(self, looks: Looks) -> None:
        for record in looks.samples:
            self._run.sample(record)
        for record in looks.metrics:
            self._run.log(record)

    def _look(self, step: int) -> Looks:
        if self._subject is None:
            return Looks()
        try:
            return self._measure(step, self._subject)
        except Refused:  # training will say it
            self._subject = None
            return Looks()
        except Exception as problem:  # a model that cannot be looked at can still be trained
            self._subject = None
            kind = type(problem).__name__
            print(f"looking into the model failed ({kind}: {problem}); training goes on without", file=sys.stderr)
            return Looks()

    def _measure(self, step: int, subject: Subject) -> Looks:
        model = self._model
        samples = [{"step": step, **subject.sample(model)}] if hasattr(model, "step") else []
        found = heads(attentions(model, lambda: subject.forward(model)))
        names = dict.fromkeys(head.name for head in found)
        measures = {
            measure: {name: [round(getattr(h, measure), 5) for h in found if h.name == name] for name in names}
            for measure in ("entropy", "spread")
        }
        return Looks(samples, [{"step": step, **measures}] if found else [])


def layers(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The parameters by layer: "blocks.0" for one of a list of modules, "embed" for one that stands alone."""
    found: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
        found.setdefault(".".join(parts[: number + 1]), []).append(parameter)
    return found


@torch.no_grad()
def gradient_norms(layers: dict[str, list[nn.Parameter]], norm: float) -> dict[str, float]:
    """Each layer's share of a gradient whose norm was `norm` before it was clipped, as a norm of its own."""
    groups = {name: [p.grad for p in members if p.grad is not None] for name, members in layers.items()}
    groups = {name: gradients for name, gradients in groups.items() if gradients}
    found = torch.stack([torch.nn.utils.get_total_norm(gradients).float() for gradients in groups.values()]).tolist()
    left = math.hypot(*found)  # after clipping, which scales all alike
    return {name: round(value * norm / left, 7) if left else 0.0 for name, value in zip(groups, found, strict=True)}
