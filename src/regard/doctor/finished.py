"""The doctor after training: findings from a run folder, whether the training was watched or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from regard.doctor.check import Check, all_checks
from regard.doctor.context import TrainingRun
from regard.doctor.finding import Finding
from regard.doctor.gradients import Gradients
from regard.doctor.side_pass import SidePass
from regard.errors import UserError
from regard.runs import Run
from regard.train import Experiment

PATIENCE = 1.0  # seconds for the newest batches


def examine(run: Run) -> tuple[list[Finding], list[str]]:
    """Findings noted during training, from the records, and from the newest checkpoint; and what was not examined."""
    experiment = run.load(Experiment)
    training = TrainingRun(experiment, model=experiment.model.build())
    checks = [check(training) for check in all_checks().values()]
    known = [finding for record in run.findings() if (finding := Finding.read(record)) is not None]
    records, notes = run.metrics(), []
    step = max((record["step"] for record in records), default=0)
    for record in records:
        training.history.read(record)
    found = {finding.key: finding for finding in known}
    watched = {finding.kind for finding in known}  # those noted during training know the place better
    gradients = Gradients.read(records, training.history.norm())
    hooks: list[Callable[[Check], Iterable[Finding]]] = [
        lambda check: check.on_records(records),
        lambda check: check.on_history(training.history),
        lambda check: check.on_gradients(gradients),
    ]
    for finding in (one for hook in hooks for check in checks for one in hook(check)):
        if finding.kind not in watched:
            found.setdefault(finding.key, replace(finding, step=step, since=step))
    checkpoint = run.latest()
    if checkpoint is None:
        notes.append("there is no complete checkpoint, so the model was not examined")
    else:
        assert training.model is not None
        training.model.load_state_dict(checkpoint.model())
        training.position = int(checkpoint.state.get("position", 0))
        try:
            for finding in list(_checkpoint(training, checks)):
                found.setdefault(finding.key, replace(finding, step=checkpoint.step, since=checkpoint.step))
        except UserError as problem:
            notes.append(str(problem))
    return list(found.values()), notes


def _checkpoint(training: TrainingRun, checks: list[Check]) -> Iterator[Finding]:
    """Findings in the loaded model and, if they are available, its data."""
    broken = [finding for check in checks for finding in check.on_checkpoint()]
    yield from broken
    if broken:
        return
    experiment = training.experiment
    data = training.data = experiment.data.build(experiment.model.context)
    training.get_batch = lambda number: data.batch(number, seed=experiment.seed, size=experiment.data.batch)
    training.terms = experiment.task.build().terms
    batches = training.recent_batches(PATIENCE, reading=math.inf)
    for check in checks:
        yield from check.on_batches(batches)
    if training.usable(batches.newest):
        side_pass = SidePass(training, batches.newest)
        for check in checks:
            yield from check.on_model(side_pass)
