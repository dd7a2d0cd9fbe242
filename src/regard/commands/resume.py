"""`regard resume`."""

from __future__ import annotations

from pathlib import Path

from regard.commands.common import RUNS, RunName, open_run
from regard.commands.train import sit


def resume(run: RunName = None, /, *, runs: Path = RUNS, json: bool = False) -> int:
    """Go on with a run from its newest whole checkpoint; the end is bit-identical to a run never stopped.

    Args:
        run: The run's folder or name; by default the newest run.
        runs: The folder that holds runs.
        json: Print the outcome as JSON.
    """
    found = open_run(run, runs)

    from regard.config import load
    from regard.train import Experiment

    experiment = load(Experiment, found.config, source=str(found.path / "config.toml"))
    return sit(experiment, found, json=json, resume=True)
