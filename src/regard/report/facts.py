"""What a run folder tells, gathered in one place: the report's words and figures follow from this and nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from regard.config import dump, load
from regard.errors import UserError
from regard.report.differ import FOUND_OUT, Difference, differences, kinds, whole
from regard.report.inside import Inside, Size
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
    speed: Curve = field(default_factory=list)  # tokens a second
    gradients: dict[str, Curve] = field(default_factory=dict)  # norm, by layer
    spread: dict[tuple[str, int], Curve] = field(default_factory=dict)  # relative entropy, by mechanism and head
    samples: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    memory: int = 0
    broken: int | None = None  # the first step with a loss that is no number
    diverged: str | None = None  # what the trainer said when it gave up
    size: Size | None = None
    inside: Inside | None = None
    notes: list[str] = field(default_factory=list)  # what is left out, and why
    findings: list[dict[str, Any]] = field(default_factory=list)  # the doctor's

    @property
    def steps(self) -> int:
        """How many were wanted."""
        wanted = self.config.get("train", {}).get("steps")
        return wanted if isinstance(wanted, int) else self.step

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.step >= self.steps and not self.failed

    @property
    def failed(self) -> bool:
        """Whether a loss or gradient stopped being a number."""
        return self.diverged is not None or self.broken is not None

    @property
    def pace(self) -> float | None:
        """Tokens a second, the median; the first record, of a machine that has yet to warm up, counts only alone."""
        rates = [rate for _, rate in self.speed[1:] or self.speed]
        return statistics.median(rates) if rates else None

    @property
    def data(self) -> str:
        """What it was trained on."""
        data = self.config.get("data", {})
        return str(data.get("path") or data.get("source") or data.get("kind") or "its data")


def gather(
    run: Run, recipe: tuple[str, Experiment] | None, size: Size | None, inside: Inside | None, notes: list[str]
) -> Facts:
    """Everything that is in the run folder."""
    metrics = records(run)
    try:
        environment = run.environment
    except UserError as problem:
        environment = {}
        notes.append(f"The environment is left out: {problem}.")
    name, base = recipe or ("shakespeare", None)
    return Facts(
        name=run.name,
        path=str(run.path),
        config=run.config,
        environment=environment,
        date=_date(run),
        recipe=name,
        changes=[d for d in differences(whole(run.config), dump(base)) if d.key not in FOUND_OUT] if base else [],
        unusual=_unusual(whole(run.config)),
        step=max((m["step"] for m in metrics if "diverged" not in m), default=0),
        samples=run.samples(),
        size=size,
        inside=inside,
        notes=notes,
        findings=noted(run),
        **curves(metrics),
    )


def records(run: Run) -> list[dict[str, Any]]:
    """The metrics; and how far the last checkpoint came, if a stop between two records left one."""
    metrics = run.metrics()
    logged = max((m["step"] for m in metrics), default=0)
    last = run.latest() if max(run.steps(), default=0) > logged else None
    if last is None or last.step <= logged:
        return metrics
    return [*metrics, {"step": last.step, **{name: last.state.get(name) for name in ("tokens", "seconds")}}]


def curves(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The parts of `Facts` that metrics.jsonl gives."""
    found: dict[str, Any] = {name: [] for name in ("loss", "validation", "rate", "speed")}
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
                    found[name].append((step, value))
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
    found |= {"gradients": gradients, "spread": spread, "broken": broken, "diverged": diverged}
    return found | {"seconds": seconds, "tokens": tokens, "memory": memory}


def number(value: Any) -> float | None:
    """A finite number, or None: a run folder spells NaN and infinity as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _unusual(config: dict[str, Any]) -> list[Difference]:
    """What differs from the defaults of the parts that were chosen."""
    try:
        defaults = dump(load(Experiment, kinds(config)))
    except (UserError, ValueError, TypeError):  # a part that this version does not know
        return []
    chosen = dump(Experiment())
    found = differences(config, defaults)
    parts = [d for d in differences(defaults, chosen) if isinstance(d.value, str) and d.key in _choices(config)]
    return parts + [difference for difference in found if difference.key not in FOUND_OUT]


def _choices(config: Mapping[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= {f"{prefix}{name}"} if "kind" in value else set()
            found |= _choices(value, f"{prefix}{name}.")
    return found


def _date(run: Run) -> str:
    for name in ("metrics.jsonl", "config.toml"):
        if (path := run.file(name)).exists():
            return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return ""
