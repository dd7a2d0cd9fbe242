"""`regard report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from regard.commands.common import RunOptions, check_parent
from regard.config import option
from regard.runs import Run
from regard.runs.waiting import waiting

if TYPE_CHECKING:
    from regard.train import Experiment


@dataclass(frozen=True)
class ReportOptions(RunOptions):
    """Options of `regard report`."""

    out: Path | None = option(None, "the file to write; default: report.html in the run's folder")


def report(options: ReportOptions) -> int:
    """Write a run's report: one HTML page of text and figures."""
    run = options.open()
    from regard.report import gather, write
    from regard.report.words import next_step, summary

    recipe = nearest_recipe(run)
    check_parent(options.out)
    with waiting("writing the report"):
        facts = gather(run, recipe)
        path = write(run, facts, options.out)
    step = next_step(facts)
    words = {"words": " ".join(summary(facts)), "why": step.why, "next": step.command, "left_out": facts.notes}
    options.show({"run": str(run.path), "report": str(path), "damaged": run.damaged, **words}, str(path))
    return 0


def nearest_recipe(run: Run) -> tuple[str, Experiment]:
    """The recipe from which the fewest options lead to a run's config; the command to repeat the run starts there."""
    from regard.config import dump
    from regard.recipes import get, names
    from regard.report.config_diff import AUTOMATIC, complete, differences

    config = complete(run.config)

    def distance(name: str) -> int:
        return sum(change.key not in AUTOMATIC for change in differences(config, dump(get(name))))

    name = min(names(), key=distance)
    return name, get(name)
