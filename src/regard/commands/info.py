"""`regard info`."""

from regard.commands.common import RunOptions
from regard.runs.curve import curve
from regard.runs.waiting import waiting


def info(options: RunOptions) -> int:
    """Summarize a run: model, data, progress, losses and damaged checkpoints."""
    run = options.open()
    model, data = (run.table(name) for name in ("model", "data"))
    metrics = run.metrics()
    with waiting("checking the checkpoints"):
        damaged = run.examine_checkpoints()
    losses = [m["loss"] for m in metrics if isinstance(m.get("loss"), float)]
    validation = {m["step"]: m["validation_loss"] for m in metrics if "validation_loss" in m}
    summary = {
        "run": str(run.path),
        "steps": max((*(m["step"] for m in metrics), *run.steps()), default=0),  # a stop saves between two records
        "of": run.planned_steps,
        "loss": losses[-1] if losses else None,
        "validation_loss": next(reversed(validation.values()), None),
        "seconds": max((m["seconds"] for m in metrics if isinstance(m.get("seconds"), int | float)), default=0),
        "checkpoints": run.steps(),
        "damaged": damaged,
        "model": model,
        "data": data,
        "environment": run.environment,
    }
    sizes = ", ".join(f"{key} {model[key]}" for key in ("layers", "heads", "width", "context") if key in model)
    of = f" of {summary['of']:,}" if summary["of"] else ""
    verb = "imported from" if run.imported else "on"
    lines = [
        f"{run.path}: {model.get('kind')} ({sizes}) {verb} {data.get('path') or data.get('source')}",
        f"step {summary['steps']:,}{of}, {summary['seconds']:.0f} s, checkpoints {run.steps()}",
        *damaged,
        *([curve(metrics)] if losses else []),
    ]
    options.show(summary, "\n".join(lines))
    return 0
