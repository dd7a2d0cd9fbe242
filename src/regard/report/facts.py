"""The facts of a run, gathered from its folder. The words and figures of the report follow from these alone."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from regard.config import dump
from regard.config.choice import kinds
from regard.data import SyntheticConfig
from regard.report.config_diff import AUTOMATIC, Difference, complete, differences, unusual_settings
from regard.report.inspection import Inspection, ModelSize, attempt, inspect, model_size
from regard.runs import Run
from regard.runs.disk import JsonObject
from regard.tasks import TaskConfig
from regard.train import Experiment
from regard.train.evaluate import judged

Curve = list[tuple[float, float]]
Recipe = tuple[str, Experiment]  # with its name


@dataclass(frozen=True)
class Facts:
    """A run in numbers. Curves are (step, value), finite values only."""

    name: str
    path: str
    config: JsonObject
    environment: JsonObject = field(default_factory=dict)
    date: str = ""  # of the last record
    recipe: str = "shakespeare"  # the nearest one
    changes: list[Difference] = field(default_factory=list)  # from that recipe
    unusual: list[Difference] = field(default_factory=list)  # from the defaults
    step: int = 0
    loss: Curve = field(default_factory=list)
    validation: Curve = field(default_factory=list)
    validation_errors: dict[float, float] = field(default_factory=dict)  # standard errors, of samples, by step
    judged: dict[str, float] = field(default_factory=dict)  # measures of the last evaluation, if not the loss alone
    rate: Curve = field(default_factory=list)
    speed: Curve = field(default_factory=list)  # tokens per second
    gradients: dict[str, Curve] = field(default_factory=dict)  # norm, by layer
    spread: dict[tuple[str, int], Curve] = field(default_factory=dict)  # relative entropy, by mechanism and head
    samples: list[JsonObject] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    memory: int = 0
    broken: int | None = None  # the first step with a loss that is not finite
    diverged: str | None = None  # the error of the trainer
    size: ModelSize | None = None
    inspection: Inspection | None = None
    notes: list[str] = field(default_factory=list)  # what is left out, and why
    findings: list[JsonObject] = field(default_factory=list)  # the doctor's

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
    def unit(self) -> str:
        """What the run counts: tokens, unless its task says otherwise."""
        return self._task.unit

    @property
    def loss_unit(self) -> str:
        """What its losses are in: nats per token, unless its task says otherwise."""
        return f"{self._task.measured_in} per {self.unit}"

    @property
    def generated(self) -> bool:
        """Whether its data are generated problems."""
        return _table(self.config.get("data")).get("kind") == SyntheticConfig.kind

    @property
    def _task(self) -> type[TaskConfig]:
        return kinds(TaskConfig).get(str(_table(self.config.get("task")).get("kind")), TaskConfig)

    @property
    def data(self) -> str:
        """The name of the training data."""
        data = _table(self.config.get("data"))
        return str(data.get("path") or data.get("source") or data.get("kind") or "its data")


def gather(run: Run, recipe: Recipe | None = None, seconds: float | None = None) -> Facts:
    """The facts of a run. ``recipe`` is the nearest one, for the commands to try next.

    ``seconds``: about as much time as the loss by position may take (default: as much as it needs).
    """
    notes: list[str] = []
    size = attempt(notes, "Parameters and FLOPs are left out", lambda: model_size(run))
    inspection = inspect(run, notes, seconds)
    notes += run.damaged
    environment = attempt(notes, "The environment is left out", lambda: run.environment) or {}
    name, base = recipe or ("shakespeare", None)
    config, metrics = complete(run.config), records(run)
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
        judged=attempt([], "", lambda: last_judged(run, metrics)) or {},
        samples=run.samples(),
        size=size,
        inspection=inspection,
        notes=notes,
        findings=run.findings(),
        **curves(metrics),
    )


def records(run: Run) -> list[JsonObject]:
    """The metrics, and the step of the last checkpoint if it is later than the last record."""
    metrics = run.metrics()
    logged = max((m["step"] for m in metrics), default=0)
    last = run.latest() if max(run.steps(), default=0) > logged else None
    if last is None or last.step <= logged:
        return metrics
    return [*metrics, {"step": last.step, **{name: last.state.get(name) for name in ("tokens", "seconds")}}]


def last_judged(run: Run, metrics: Sequence[JsonObject]) -> dict[str, float]:
    """The measures by which the task is judged, in the last evaluation."""
    last = next((record for record in reversed(metrics) if "validation_loss" in record), {})
    return judged(run.load(TaskConfig, "task").build(), last)


def curves(metrics: Sequence[JsonObject]) -> JsonObject:
    """The fields of `Facts` that come from metrics.jsonl."""
    gradients: dict[str, Curve] = {}
    spread: dict[tuple[str, int], Curve] = {}
    for record in metrics:
        for layer, norm in _table(record.get("gradients")).items():
            gradients.setdefault(layer, []).append((record["step"], norm))
        for mechanism, values in _table(record.get("spread")).items():
            for head, share in enumerate(values if isinstance(values, list) else [], start=1):
                spread.setdefault((mechanism, head), []).append((record["step"], share))

    def recorded(key: str) -> Curve:
        return [(record["step"], record[key]) for record in metrics if key in record]

    def most(key: str) -> float:
        return max((value for _, value in finite(recorded(key))), default=0)

    return {
        "loss": finite(recorded("loss")),
        "validation": finite(recorded("validation_loss")),
        "validation_errors": dict(finite(recorded("validation_error"))),
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


def number(value: object) -> float | None:
    """A finite number, or None: a run folder stores NaN and infinity as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _table(value: object) -> JsonObject:
    """A table of a record; empty if it is something else, as in a damaged file."""
    return value if isinstance(value, dict) else {}


def _date(run: Run) -> str:
    for name in ("metrics.jsonl", "config.toml"):
        if (path := run.file(name)).exists():
            return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return ""
