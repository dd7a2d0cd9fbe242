"""The doctor afterwards: what a run folder tells of a training that nobody watched, or that was watched."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from regard.doctor import gradients
from regard.doctor.checkup import Checkup
from regard.doctor.curves import Curves
from regard.doctor.finding import Finding
from regard.doctor.gradients import Group
from regard.doctor.inside import experts
from regard.errors import UserError
from regard.nn.experts.moe import MoEConfig
from regard.runs import Run
from regard.runs.findings import noted
from regard.train import Experiment

RECENT = 20


def examine(run: Run) -> tuple[list[Finding], list[str]]:
    """What was found while it trained, what its records show, and its newest checkpoint; and what was left out."""
    found: dict[tuple[str, str], Finding] = {}
    notes: list[str] = []
    known = (Finding.read(record) for record in noted(run))
    experiment: Any = run.load(Experiment)
    metrics = run.metrics()
    step = max((record["step"] for record in metrics), default=0)
    _take(found, (finding for finding in known if finding is not None))
    watched = {finding.kind for finding in found.values()}  # who was there knows the place better than the records
    records = (one for one in recorded(experiment, metrics) if one.kind not in watched)
    _take(found, (replace(one, step=step, since=step) for one in records))
    try:
        seen = list(_checkpoint(run, experiment, notes))
    except UserError as problem:
        notes.append(str(problem))
        seen = []
    _take(found, seen)
    return list(found.values()), notes


def _take(found: dict[tuple[str, str], Finding], more: Iterable[Finding]) -> None:
    for finding in more:
        found.setdefault(finding.place, finding)


def recorded(experiment: Any, metrics: list[dict[str, Any]]) -> Iterator[Finding]:
    """What metrics.jsonl shows: losses, rates, norms by layer, shares of experts, the words of an end."""
    curves, shares, layers = Curves(experiment.train, getattr(experiment.model, "vocabulary", None)), [], []
    for record in metrics:
        curves.read(record)
        if "loss" in record and (rise := curves.jumped()) is not None:
            yield _jump(experiment, record, rise)
        if "expert_share" in record and "expert_gate" in record:
            shares.append((record["expert_share"], record["expert_gate"]))
        if isinstance(record.get("gradients"), dict):
            layers.append(record["gradients"])
        if "diverged" in record:
            yield _diverged(record)
    yield from curves.findings()
    yield from _gradients(layers, curves.norm(), experiment.train.clip)
    yield from _experts(experiment, shares)


def _jump(experiment: Any, record: dict[str, Any], rise: float) -> Finding:
    count, step = experiment.train.accumulate, record["step"]
    numbers = " or ".join(str((step - 1) * count + i) for i in range(count))
    evidence = f"at step {step} the loss is {record['loss']:.3f}, {rise:.2f} above all that were logged before"
    cause = "its text or its targets are unlike all others, or the rate is at the edge"
    return Finding("loss_spike", f"batch {numbers}", evidence, cause, "look at that batch; --train.clip 0.5")


def _diverged(record: dict[str, Any]) -> Finding:
    said = str(record["diverged"])
    module = said.partition("first in the output of ")[2].partition(";")[0] or "the gradient"
    change = "--train.optimizer.lr lower by 10, --train.clip 1.0, or --train.precision float32"
    cause = "its result is beyond the number format: weights or inputs too large for what it computes"
    return Finding("non_finite", module, said.partition(";")[0], cause, change)


def _gradients(layers: list[dict[str, Any]], norm: float, clip: float | None) -> Iterator[Finding]:
    """Norms by layer as the run logged them; the middle of the last ones."""
    recent = layers[-RECENT:]
    if len(recent) < 2:
        return
    found: dict[Group, float | None] = {}
    for name in recent[-1]:
        stack, _, number = name.rpartition(".")
        if number.isdigit():
            found[Group(stack, int(number), "")] = statistics.median(float(one.get(name, 0.0)) for one in recent)
    yield from gradients.judge(found, norm, clip)


def _experts(experiment: Any, told: list[tuple[list[list[float]], list[list[float]]]]) -> Iterator[Finding]:
    """Means over the second half of the run: routers begin by chance."""
    late = told[len(told) // 2 :]
    mixture = getattr(experiment.model, "feedforward", None)
    if len(late) < 2 or not isinstance(mixture, MoEConfig):
        return
    means = torch.tensor(late, dtype=torch.float64).mean(0)  # [2, layers, experts]
    for layer, (shares, gates) in enumerate(means.transpose(0, 1).tolist()):
        yield from experts(f"blocks.{layer}.feedforward", shares, gates, mixture)


def _checkpoint(run: Run, experiment: Any, notes: list[str]) -> Iterator[Finding]:
    """The newest model on its own data, where both are there."""
    checkpoint = run.latest()
    if checkpoint is None:
        notes.append("there is no whole checkpoint, so the model was not looked into")
        return
    model: nn.Module = experiment.model.build()
    model.load_state_dict(checkpoint.model())
    bad = next((name for name, weight in model.named_parameters() if not bool(torch.isfinite(weight).all())), None)
    step = checkpoint.step
    if bad is not None:
        cause, change = "the checkpoint itself holds numbers that are not finite", "resume from an earlier one"
        yield Finding("non_finite", bad, f"in the checkpoint of step {step}", cause, change, step, step)
        return
    data = experiment.data.build(experiment.model.context)
    for finding in _look(model, data, experiment, int(checkpoint.state.get("position", 0))):
        yield replace(finding, step=step, since=step)


def _look(model: nn.Module, data: Any, experiment: Any, position: int) -> Iterator[Finding]:
    def batch(number: int) -> Any:
        return data.batch(number, seed=experiment.seed, size=experiment.data.batch)

    checkup = Checkup(experiment, model, data, batch, experiment.task.build().terms)
    fetched, wrong = checkup.batches(max(position - 1, 0), patience=1.0)
    yield from wrong
    yield from checkup.model_on(fetched.newest, torch.device("cpu"))
    yield from checkup.text(math.inf)
