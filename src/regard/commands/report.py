"""`regard report`."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import RUNS, RunName, open_run
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.runs import Run
    from regard.train import Experiment


def report(run: RunName = None, /, *, runs: Path = RUNS, out: Path | None = None, json: bool = False) -> int:
    """A run as one page of words and pictures: report.html.

    Args:
        run: The run's folder or name; by default the newest run.
        runs: The folder that holds runs.
        out: The file to write; by default report.html in the run's folder.
        json: Print where it is, and the run in words, as JSON.
    """
    found = open_run(run, runs)
    from regard.report import study, write
    from regard.report.words import next_step, summary

    recipe = nearest_recipe(found)
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} for --out {out}; make it first")
    facts = study(found, recipe)
    path = write(found, facts, out)
    if json:
        step = next_step(facts)
        words = {"words": " ".join(summary(facts)), "why": step.why, "next": step.command, "left_out": facts.notes}
        print(jsonlib.dumps({"run": str(found.path), "report": str(path), **words}))
    else:
        print(path)
    return 0


def nearest_recipe(run: Run) -> tuple[str, Experiment]:
    """The recipe from which the fewest options lead to a run's config: a command to repeat it starts there."""
    from regard.config import dump
    from regard.recipes import get, names
    from regard.report.config_diff import AUTOMATIC, complete, differences

    config = complete(run.config)

    def distance(name: str) -> int:
        return sum(change.key not in AUTOMATIC for change in differences(config, dump(get(name))))

    name = min(names(), key=distance)
    return name, get(name)
