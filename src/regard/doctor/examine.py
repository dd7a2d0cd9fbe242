"""Examination of a run folder: its records, its newest checkpoint and, if they are available, its data."""

import math
from dataclasses import replace
from itertools import chain

import torch

from regard.doctor.check import (
    Check,
    Finding,
    Findings,
    all_checks,
    common_pass,
    covered,
    explained,
    judge_pass,
    known_findings,
    merged,
    ranked,
)
from regard.doctor.context import TrainingRun
from regard.doctor.gradients import Gradients
from regard.errors import UserError
from regard.generate.load import restored
from regard.models.base import Model
from regard.models.shapes import fits
from regard.parallel.world import from_environment
from regard.runs import Checkpoint, Run
from regard.train import Experiment
from regard.train.guard import check_model
from regard.train.pretrained import build_data

PATIENCE = 1.0  # seconds for the newest batches


def examine(run: Run) -> tuple[list[Finding], list[str]]:
    """Findings noted during training, from the records, and from the newest checkpoint; and what was not examined."""
    experiment, checkpoint = run.load(Experiment), run.latest()
    found, records, notes = known_findings(run), run.metrics(), []
    if checkpoint is None:
        why = f" ({'; '.join(run.damaged)})" if run.damaged else ""
        notes.append(f"there is no complete checkpoint{why}, so the model was not examined")
    elif not fits(experiment.model, checkpoint.shapes(), quantized=experiment.quantization is not None):
        notes.append("the newest checkpoint does not fit config.toml, so the model was not examined")
        checkpoint = None
    training = TrainingRun(experiment, model=_model(run, experiment, checkpoint), lanes=experiment.train.lanes or 1)
    checks = [check(training) for check in all_checks().values()]
    watched = {finding.kind for finding in found.values()}  # those noted during training know the place better
    step = max((record["step"] for record in records), default=0)
    training.history.read(records)
    gradients = Gradients.read(records, training.history.norm())
    for check in checks:
        if check.kind not in watched:
            given = (check.on_records(records), check.on_history(training.history), check.on_gradients(gradients))
            for finding in merged(chain(*given)):
                found.setdefault(finding.key, replace(finding, step=step, since=step))
    if checkpoint is not None:
        training.position = int(checkpoint.number("position")) * training.lanes
        try:
            for finding in merged(_checkpoint(run, training, checks)):
                if covered(finding, found.values()):
                    continue
                found.setdefault(finding.key, replace(finding, step=checkpoint.step, since=checkpoint.step))
        except UserError as problem:
            notes.append(str(problem))
    causes = [one for one in found.values() if not explained(one, found.values())]
    return ranked(causes), notes


def _model(run: Run, experiment: Experiment, checkpoint: Checkpoint | None) -> Model:
    """The model with the weights of the checkpoint, if there is one; a model of absurd size is refused."""
    if checkpoint is not None:
        return restored(run, experiment.model, checkpoint)
    check_model(experiment, torch.device("cpu"), from_environment())
    return experiment.model.build()


def _checkpoint(run: Run, training: TrainingRun, checks: list[Check]) -> Findings:
    """Findings in the loaded model and, if they are available, its data."""
    broken = [finding for check in checks for finding in check.on_checkpoint()]
    yield from broken
    if broken:
        return
    training.data = build_data(training.experiment, run)
    batches = training.recent_batches(PATIENCE, reading=math.inf)
    model_pass = common_pass(training, batches.newest, checks)
    for check in checks:
        yield from check.on_batches(batches)
        yield from judge_pass(check, model_pass)
