"""The facts of a run, gathered from its folder. The words and figures of the report follow from these alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from regard.config import dump
from regard.errors import UserError
from regard.report.config_diff import AUTOMATIC, Difference, complete, differences, unusual_settings
from regard.report.inspection import Inspection, ModelSize
from regard.runs import Run
from regard.runs.findings import noted
from regard.train import Experiment

Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Facts:
    """A run in numbers. Curves are (step, value), finite values only."""

    name: str
    path: str
    config: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)
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
    samples: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    memory: int = 0
    broken: int | None = None  # the first step with a loss that is not finite
    diverged: str | None = None  # the error of the trainer
    size: ModelSize | None = None
    inspection: Inspection | None = None
    notes: list[str] = field(default_factory=list)  # what is left out, and why
    findings: list[dict[str, Any]] = field(default_factory=list)  # the doctor's

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
        findings=noted(run),
        **curves(metrics),
    )


def records(run: Run) -> list[dict[str, Any]]:
    """The metrics, and the step of the last checkpoint if it is later than the last record."""
    metrics = run.metrics()
    logged = max((m["step"] for m in metrics), default=0)
    last = run.latest() if max(run.steps(), default=0) > logged else None
    if last is None or last.step <= logged:
        return metrics
    return [*metrics, {"step": last.step, **{name: last.state.get(name) for name in ("tokens", "seconds")}}]


def curves(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of `Facts` that come from metrics.jsonl."""
    fields: dict[str, Any] = {name: [] for name in ("loss", "validation", "rate", "speed")}
    gradients: dict[str, Curve] = {}
    spread: dict[tuple[str, int], Curve] = {}
    names = {"loss": "loss", "validation": "validation_loss", "rate": "lr", "speed": "tokens_per_second"}
    broken = diverged = None
    seconds, tokens, memory = 0.0, 0, 0
    for record in metrics:
        step = record["step"]
        for name, key in names.items():
            if key in record:
                value = number(record[key])
                if value is not None:
                    fields[name].append((step, value))
                elif name == "loss" and broken is None:
                    broken = step
        for layer, norm in record.get("gradients", {}).items():
            if (value := number(norm)) is not None:
                gradients.setdefault(layer, []).append((step, value))
        for mechanism, values in record.get("spread", {}).items():
            for head, share in enumerate(values, start=1):
                if (value := number(share)) is not None:
                    spread.setdefault((mechanism, head), []).append((step, value))
        diverged = record.get("diverged", diverged)
        seconds = max(seconds, number(record.get("seconds")) or 0.0)
        tokens = max(tokens, int(number(record.get("tokens")) or 0))
        memory = max(memory, int(number(record.get("memory")) or 0))
    fields |= {"gradients": gradients, "spread": spread, "broken": broken, "diverged": diverged}
    return fields | {"seconds": seconds, "tokens": tokens, "memory": memory}


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
