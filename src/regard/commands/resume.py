"""`regard resume`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from regard.commands.common import RUNS, RunName, open_run, rank
from regard.commands.train import sit
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.train import Experiment


def resume(
    run: RunName = None,
    /,
    *,
    steps: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None,
    runs: Path = RUNS,
    json: bool = False,
) -> int:
    """Go on with a run from its newest whole checkpoint; the end is bit-identical to a run never stopped.

    With --steps the plan itself is changed, of a finished run too: the learning rate then follows the schedule of
    the new number of steps from there on, and may rise again. What was done stays as it was, so the end is not that
    of a run which had this plan from its first step.

    Args:
        run: The run's folder or name; by default the newest run.
        steps: How many updates the run shall have in all; by default as many as were planned.
        runs: The folder that holds runs.
        json: Print the outcome as JSON.
    """
    found = open_run(run, runs)
    reached = max(found.steps(), default=0)
    if steps is not None and steps <= reached:
        raise UserError(
            f"{found.path} has done {reached:,} steps; --steps is the number of all its steps, those included: give "
            f"more than {reached}"
        )

    from regard.config import load
    from regard.train import Experiment

    experiment = load(Experiment, found.config, source=str(found.path / "config.toml"))
    if steps is not None:
        experiment = replanned(experiment, steps, reached)
    planned = experiment.train.steps
    code = sit(experiment, found, json=json, resume=True)
    if planned is not None and reached >= planned and not rank():
        print(f"train it further: regard resume {found.path} --steps {2 * planned}", file=sys.stderr)
    return code


def replanned(experiment: Experiment, steps: int, reached: int) -> Experiment:
    """The experiment with another number of steps from the step `reached` on, and a note of it."""
    train = experiment.train
    if steps == train.steps:
        return experiment
    before = "" if train.steps is None else f"{train.steps} steps planned, "
    note = f"{before}{steps} from step {reached} on; the schedule follows the newer plan"
    note = note if train.budget is None else f"{train.budget}; {note}"
    return replace(experiment, train=replace(train, steps=steps, tokens=None, seconds=None, budget=note))
