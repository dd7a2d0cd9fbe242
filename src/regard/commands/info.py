"""`regard info`."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.commands.common import RUNS, RunName, open_run
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.runs import Run


def info(run: RunName = None, /, *, runs: Path = RUNS, json: bool = False) -> int:
    """What a run is and how it went.

    Args:
        run: The run's folder or name; by default the newest run.
        runs: The folder that holds runs.
        json: Print it as JSON.
    """
    found = open_run(run, runs)
    config = {name: section(found, name) for name in ("model", "data", "train")}
    metrics = found.metrics()
    losses = [m["loss"] for m in metrics if isinstance(m.get("loss"), float)]
    held_out = {m["step"]: m["validation_loss"] for m in metrics if "validation_loss" in m}
    summary = {
        "run": str(found.path),
        "steps": max((*(m["step"] for m in metrics), *found.steps()), default=0),  # a stop saves between two records
        "of": config["train"].get("steps"),
        "loss": losses[-1] if losses else None,
        "validation_loss": next(reversed(held_out.values()), None),
        "seconds": max((m.get("seconds", 0) for m in metrics), default=0),
        "checkpoints": found.steps(),
        "model": config["model"],
        "data": config["data"],
        "environment": found.environment,
    }
    if json:
        print(jsonlib.dumps(summary))
        return 0
    from regard.runs.curve import curve

    model = summary["model"]
    shape = ", ".join(f"{key} {model[key]}" for key in ("layers", "heads", "width", "context") if key in model)
    print(
        f"{found.path}: {model.get('kind')} ({shape}) on {summary['data'].get('path') or summary['data'].get('source')}"
    )
    of = f" of {summary['of']:,}" if isinstance(summary["of"], int) else ""  # a budget not yet turned into steps
    print(f"step {summary['steps']:,}{of}, {summary['seconds']:.0f} s, checkpoints {found.steps()}")
    if losses:
        print(curve(metrics))
    return 0


def section(run: Run, name: str) -> dict[str, Any]:
    """One table of a run's config."""
    table = run.config.get(name)
    if not isinstance(table, dict):
        raise UserError(f"{run.path / 'config.toml'} has no [{name}]; restore it from a copy")
    return table
