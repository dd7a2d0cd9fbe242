"""The run folder of a training: created, or with `--again` continued; rank 0 decides, and all ranks use the same."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from regard.commands.common import rank
from regard.commands.launch import is_restart, launch_id
from regard.config import to_toml
from regard.errors import UserError
from regard.runs import Run, environment
from regard.runs.asked import ASKED, check_same, environment_of, wait_for_run

if TYPE_CHECKING:
    from regard.commands.train import TrainOptions
    from regard.train import Experiment

LAUNCH = "launch"  # key in a run's environment.json: what started the run


def start_run(options: TrainOptions, experiment: Experiment, prefix: str) -> tuple[Run, bool]:
    """The run, and whether it existed before."""
    from regard.parallel.group import agree
    from regard.parallel.world import from_environment

    def choose() -> str:
        run = _existing(options, to_toml(experiment))
        return json.dumps([(run or _created(options, experiment, prefix)).path.name, run is not None])

    name, existed = json.loads(agree(from_environment(), options.timeout, choose))
    return wait_for_run(options.runs / name, rank()), existed


def _created(options: TrainOptions, experiment: Experiment, prefix: str) -> Run:
    asked, launch = to_toml(experiment), launch_id(os.environ)
    described = {**environment(), ASKED: asked, **({} if launch is None else {LAUNCH: launch})}
    return Run.create(options.runs, options.name, asked, described, prefix=prefix)


def _existing(options: TrainOptions, asked: str) -> Run | None:
    """The run to continue: with --again that of the name, else what an earlier start of this job has made."""
    launch = launch_id(os.environ)
    if options.again and options.name is not None:
        paths = [options.runs / options.name]
    elif options.again and launch is None:
        raise UserError("--again needs --name, which says which run to continue")
    elif launch is None or not (options.again or is_restart(os.environ)):
        return None
    else:
        names = "*" if options.name is None else options.name
        paths = [path for path in options.runs.glob(names) if environment_of(path).get(LAUNCH) == launch]
    run = next((Run.open(path) for path in paths if (path / "config.toml").is_file()), None)
    if run is not None:
        check_same(run, asked)
    return run
