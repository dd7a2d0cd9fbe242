"""The facts of a run, gathered from its folder. The words and figures of the report follow from these alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from regard.config import dump
from regard.errors import UserError
from regard.report.config_diff import AUTOMATIC, Difference, complete, differences, unusual_settings
from regard.report.inspection import Inspection, ModelSize
from regard.report.probes import Record
from regard.runs import Run
from regard.train import Experiment

Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Facts:
    """A run in numbers. Curves are (step, value), finite values only."""

    name: str
    path: str
    config: Record
    environment: Record = field(default_factory=dict)
    date: str = ""  # of the last record
    recipe: str = "shakespeare"  # the nearest one
    changes: list[Difference] = field(default_factory=list)  # from that recipe
    unusual: list[Difference] = field(default_factory=list)  # from the defaults
    step: int = 0
    loss: Curve = field(default_factory=list)
    validation: Curve = field(default_factory=list)
    rate: Curve = field(default_factory=list)
    speed: Curve = field(default_factory=list)  # tokens per second
    gradients: dict[str, Curve] = field(default_factory=dict)  # norm, by layer
    spread: dict[tuple[str, int], Curve] = field(default_factory=dict)  # relative entropy, by mechanism and head
    samples: list[Record] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    memory: int = 0
    broken: int | None = None  # the first step with a loss that is not finite
    diverged: str | None = None  # the error of the trainer
    size: ModelSize | None = None
    inspection: Inspection | None = None
    notes: list[str] = field(default_factory=list)  # what is left out, and why
    findings: list[Record] = field(default_factory=list)  # the doctor's

    @property
    def steps(self) -> int:
        """The planned number of steps."""
        wanted = self.config.get("train", {}).get("steps")
        return wanted if isinstance(wanted, int) else self.step

    @property
    def finished(self) -> bool:
        """Whether all planned steps were done."""
        return self.step >= self.steps and not self.failed

    @property
    def failed(self) -> bool:
        """Whether a loss or gradient was not finite."""
        return self.diverged is not None or self.broken is not None

    @property
    def pace(self) -> float | None:
        """Median tokens per second, without the first record (warm-up) if there are others."""
        rates = [rate for _, rate in self.speed[1:] or self.speed]
        return statistics.median(rates) if rates else None

    @property
    def data(self) -> str:
        """The name of the training data."""
        data = self.config.get("data", {})
        return str(data.get("path") or data.get("source") or data.get("kind") or "its data")


def gather(
    run: Run,
    recipe: tuple[str, Experiment] | None,
    size: ModelSize | None,
    inspection: Inspection | None,
    notes: list[str],
) -> Facts:
    """Everything that is in the run folder."""
    metrics = records(run)
    try:
        environment = run.environment
    except UserError as problem:
        environment = {}
        notes.append(f"The environment is left out: {problem}.")
    name, base = recipe or ("shakespeare", None)
    config = complete(run.config)
    return Facts(
        name=run.name,
        path=str(run.path),
        config=run.config,
        environment=environment,
        date=_date(run),
        recipe=name,
        changes=[d for d in differences(config, dump(base)) if d.key not in AUTOMATIC] if base else [],
        unusual=unusual_settings(config),
        step=max((m["step"] for m in metrics if "diverged" not in m), default=0),
        samples=run.samples(),
        size=size,
        inspection=inspection,
        notes=notes,
        findings=run.findings(),
        **curves(metrics),
    )


def records(run: Run) -> list[Record]:
    """The metrics, and the step of the last checkpoint if it is later than the last record."""
    metrics = run.metrics()
    logged = max((m["step"] for m in metrics), default=0)
    last = run.latest() if max(run.steps(), default=0) > logged else None
    if last is None or last.step <= logged:
        return metrics
    return [*metrics, {"step": last.step, **{name: last.state.get(name) for name in ("tokens", "seconds")}}]


def curves(metrics: Sequence[Record]) -> Record:
    """The fields of `Facts` that come from metrics.jsonl."""
    gradients: dict[str, Curve] = {}
    spread: dict[tuple[str, int], Curve] = {}
    for record in metrics:
        for layer, norm in record.get("gradients", {}).items():
            gradients.setdefault(layer, []).append((record["step"], norm))
        for mechanism, values in record.get("spread", {}).items():
            for head, share in enumerate(values, start=1):
                spread.setdefault((mechanism, head), []).append((record["step"], share))

    def recorded(key: str) -> Curve:
        return [(record["step"], record[key]) for record in metrics if key in record]

    def most(key: str) -> float:
        return max((value for _, value in finite(recorded(key))), default=0)

    return {
        "loss": finite(recorded("loss")),
        "validation": finite(recorded("validation_loss")),
        "rate": finite(recorded("lr")),
        "speed": finite(recorded("tokens_per_second")),
        "gradients": {layer: finite(curve) for layer, curve in gradients.items()},
        "spread": {head: finite(curve) for head, curve in spread.items()},
        "broken": next((step for step, loss in recorded("loss") if number(loss) is None), None),
        "diverged": next((record["diverged"] for record in reversed(metrics) if "diverged" in record), None),
        "seconds": most("seconds"),
        "tokens": int(most("tokens")),
        "memory": int(most("memory")),
    }


def finite(curve: Curve) -> Curve:
    """The points with finite values."""
    return [(step, value) for step, raw in curve if (value := number(raw)) is not None]


def number(value: Any) -> float | None:
    """A finite number, or None: a run folder stores NaN and infinity as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _date(run: Run) -> str:
    for name in ("metrics.jsonl", "config.toml"):
        if (path := run.file(name)).exists():
            return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return ""
