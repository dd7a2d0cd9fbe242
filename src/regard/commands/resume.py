"""`regard resume`."""

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from regard.commands.common import RunOptions, rank
from regard.commands.launch import adopt_slurm, check_processes, command_began, launch
from regard.commands.train import ObserverOptions, run_training
from regard.config import option
from regard.config.parts import with_options
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.train import Experiment


@dataclass(frozen=True)
class ResumeOptions(RunOptions, ObserverOptions):
    """Options of `regard resume`."""

    steps: int | None = option(None, "total number of updates, those already done included; default: as planned")


def resume(options: ResumeOptions) -> int:
    """Continue a run from its newest intact checkpoint; the result is bit-identical to an uninterrupted run.

    --steps changes the plan, of a finished run too: from there on the learning rate follows the schedule of the new
    number of steps, and may rise again. The steps already done stay, so the result differs from a run that had this
    plan from its first step.
    """
    began = command_began()
    adopt_slurm()
    check_processes(options)
    run, steps = options.open(), options.steps
    done = max(run.steps(), default=0)
    if steps is not None and steps <= done:
        raise UserError(
            f"{run.path} has done {done:,} steps; --steps is the total number, those included: give more than {done}"
        )
    from regard.train import Experiment

    experiment = run.load(Experiment)
    if options.processes > 1:
        lanes = experiment.train.lanes or (1 if run.steps() else None)
        return launch("resume", replace(options, run=str(run.path)), {}, lanes)
    if steps is not None:
        experiment = replanned(experiment, steps, done)
    planned = experiment.train.steps
    code = run_training(experiment, run, options, resume=True, began=began)
    if planned is not None and done >= planned and not rank():
        print(f"train it further: regard resume {run.path} --steps {2 * planned}{with_options()}", file=sys.stderr)
    return code


def replanned(experiment: "Experiment", steps: int, done: int) -> "Experiment":
    """The experiment with another number of steps from step `done` on, and a note of the change."""
    train = experiment.train
    if steps == train.steps and train.seconds is None:
        return experiment
    before = "" if train.steps is None else f"{train.steps} steps planned, "
    note = f"{before}{steps} from step {done} on; the schedule follows the newer plan"
    note = note if train.budget is None else f"{train.budget}; {note}"
    budget = {"steps": steps, "plans": (), "tokens": None, "epochs": None, "seconds": None, "budget": note}
    return replace(experiment, train=replace(train, **budget))
