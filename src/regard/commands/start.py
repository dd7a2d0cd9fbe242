"""The run folder of a training: created, or with `--again` continued; rank 0 decides, and all ranks use the same."""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import rank
from regard.commands.launch import is_restart, launch_id
from regard.config import to_toml
from regard.config.key_path import flag_text
from regard.errors import UserError
from regard.runs import Run, environment

if TYPE_CHECKING:
    from regard.commands.train import TrainOptions
    from regard.train import Experiment

#: Keys in a run's environment.json: the config as it was asked for (a start completes it), and what started the run.
ASKED, LAUNCH = "asked", "launch"


def start_run(options: TrainOptions, experiment: Experiment, prefix: str) -> tuple[Run, bool]:
    """The run, and whether it existed before."""
    from regard.parallel.group import agree
    from regard.parallel.world import from_environment

    def choose() -> str:
        run = _existing(options, to_toml(experiment))
        return json.dumps([(run or _created(options, experiment, prefix)).path.name, run is not None])

    name, existed = json.loads(agree(from_environment(), options.timeout, choose))
    return wait_for_run(options.runs / name), existed


def wait_for_run(path: Path) -> Run:
    """Open a run folder, which a network file system may show to this rank later than to rank 0."""
    end = time.monotonic() + 120
    while rank() and not (path / "config.toml").exists():
        if time.monotonic() > end:
            raise UserError(
                f"rank {rank()} does not see the run {path} of rank 0; give all machines one shared --runs folder"
            )
        time.sleep(0.1)
    return Run.open(path)


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
        paths = [path for path in options.runs.glob(names) if _environment(path).get(LAUNCH) == launch]
    run = next((Run.open(path) for path in paths if (path / "config.toml").is_file()), None)
    if run is not None:
        check_same(run, asked)
    return run


def check_same(run: Run, asked: str) -> None:
    """Refuse to continue a run with another config than the one it was started with."""
    before = _environment(run.path).get(ASKED)
    if not isinstance(before, str):
        raise UserError(f"{run.path} does not record what `regard train` was asked for; continue it: regard resume")
    old, new = (dict(_values(tomllib.loads(text))) for text in (before, asked))
    for key in [*new, *old]:
        if old.get(key) != new.get(key):
            was, now = (flag_text(values.get(key, "none")) for values in (old, new))
            raise UserError(
                f"the run {run.path} was started with {key} = {was}, not {now}; give the same options, or another "
                "--name"
            )


def _environment(path: Path) -> dict[str, object]:
    with suppress(UserError):
        return Run.open(path).environment
    return {}


def _values(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values of nested tables by their keys with dots."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
