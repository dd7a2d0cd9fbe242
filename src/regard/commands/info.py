"""`regard info`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from regard.commands.common import RunOptions
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.runs import Run


def info(options: RunOptions) -> int:
    """Summarize a run: model, data, progress and losses."""
    run = options.open()
    config = {name: section(run, name) for name in ("model", "data", "train")}
    metrics = run.metrics()
    losses = [m["loss"] for m in metrics if isinstance(m.get("loss"), float)]
    validation = {m["step"]: m["validation_loss"] for m in metrics if "validation_loss" in m}
    summary = {
        "run": str(run.path),
        "steps": max((*(m["step"] for m in metrics), *run.steps()), default=0),  # a stop saves between two records
        "of": config["train"].get("steps"),
        "loss": losses[-1] if losses else None,
        "validation_loss": next(reversed(validation.values()), None),
        "seconds": max((m.get("seconds", 0) for m in metrics), default=0),
        "checkpoints": run.steps(),
        "model": config["model"],
        "data": config["data"],
        "environment": run.environment,
    }
    if options.json:
        print(json.dumps(summary))
        return 0
    from regard.runs.curve import curve

    model, data = config["model"], config["data"]
    sizes = ", ".join(f"{key} {model[key]}" for key in ("layers", "heads", "width", "context") if key in model)
    print(f"{run.path}: {model.get('kind')} ({sizes}) on {data.get('path') or data.get('source')}")
    of = f" of {summary['of']:,}" if isinstance(summary["of"], int) else ""  # a budget not yet converted to steps
    print(f"step {summary['steps']:,}{of}, {summary['seconds']:.0f} s, checkpoints {run.steps()}")
    if losses:
        print(curve(metrics))
    return 0


def section(run: Run, name: str) -> dict[str, Any]:
    """One table of a run's config."""
    table = run.config.get(name)
    if not isinstance(table, dict):
        raise UserError(f"{run.path / 'config.toml'} has no [{name}]; restore it from a copy")
    return table
