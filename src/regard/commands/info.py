"""`regard info`."""

from regard.commands.common import RunOptions
from regard.errors import UserError
from regard.runs import Run
from regard.runs.curve import curve
from regard.runs.disk import JsonObject


def info(options: RunOptions) -> int:
    """Summarize a run: model, data, progress and losses."""
    run = options.open()
    model, data, train = (section(run, name) for name in ("model", "data", "train"))
    metrics = run.metrics()
    losses = [m["loss"] for m in metrics if isinstance(m.get("loss"), float)]
    validation = {m["step"]: m["validation_loss"] for m in metrics if "validation_loss" in m}
    summary = {
        "run": str(run.path),
        "steps": max((*(m["step"] for m in metrics), *run.steps()), default=0),  # a stop saves between two records
        "of": train.get("steps"),
        "loss": losses[-1] if losses else None,
        "validation_loss": next(reversed(validation.values()), None),
        "seconds": max((m.get("seconds", 0) for m in metrics), default=0),
        "checkpoints": run.steps(),
        "model": model,
        "data": data,
        "environment": run.environment,
    }
    sizes = ", ".join(f"{key} {model[key]}" for key in ("layers", "heads", "width", "context") if key in model)
    of = f" of {summary['of']:,}" if isinstance(summary["of"], int) else ""  # a budget not yet converted to steps
    lines = [
        f"{run.path}: {model.get('kind')} ({sizes}) on {data.get('path') or data.get('source')}",
        f"step {summary['steps']:,}{of}, {summary['seconds']:.0f} s, checkpoints {run.steps()}",
        *([curve(metrics)] if losses else []),
    ]
    options.show(summary, "\n".join(lines))
    return 0


def section(run: Run, name: str) -> JsonObject:
    """One table of a run's config."""
    table = run.config.get(name)
    if not isinstance(table, dict):
        raise UserError(f"{run.path / 'config.toml'} has no [{name}]; restore it from a copy")
    return table
