"""The folder of runs as the page sees it. A run has an id that tells nothing, and no path ever goes in or out.

Reading is all that happens here, and a run that is damaged is listed with the reason instead of hiding the others.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.report.config_diff import flatten
from regard.report.inspection import model_size
from regard.runs import Run
from regard.serve.is_training import held
from regard.serve.limits import FINDINGS, LAST, ROWS, SAMPLE, SAMPLES
from regard.serve.tail import Tail, last

#: The values of a record that a curve is drawn from come first, in this order.
FIRST = ("step", "loss", "validation_loss", "lr")


class Unknown(Exception):
    """There is no such run or trace."""


class Library:
    """The runs in one folder, or the one run whose folder was given."""

    def __init__(self, root: Path):
        self._root = root
        self._key = secrets.token_bytes(32)
        self._sizes: dict[tuple[str, int], int | None] = {}
        self._ends: dict[Path, tuple[tuple[int, int, int], dict[str, Any]]] = {}

    def paths(self) -> dict[str, Path]:
        """Every run by its id: the name under a key that only this process has."""
        alone = (self._root / "config.toml").is_file()
        found = [self._root] if alone else [path.parent for path in self._root.glob("[!.]*/config.toml")]
        return {self._identify(path.resolve().name): path for path in sorted(found)}

    def path(self, run: str) -> Path:
        """The folder of an id."""
        found = self.paths().get(run)
        if found is None:
            raise Unknown("there is no such run; it may have been removed: load the page again")
        return found

    def open(self, run: str) -> Run:
        """The run of an id."""
        return Run.open(self.path(run))

    def runs(self) -> list[dict[str, Any]]:
        """GET /api/runs: newest first."""
        found = [self._summary(run, path) for run, path in self.paths().items()]
        return sorted(found, key=lambda one: (one["started"] or "", one["name"]), reverse=True)

    def detail(self, run: str) -> dict[str, Any]:
        """GET /api/runs/ID, but for what the model can do."""
        found = self.open(run)
        try:
            environment = found.environment
        except UserError:
            environment = {}
        return {
            "id": run,
            "name": found.name,
            "config": found.config,
            "environment": environment,
            "state": self._summary(run, found.path)["state"],
            "steps": wanted(found.config),
            "checkpoints": found.steps(),
            "samples": [sample(record) for record in Tail(found.file("samples.jsonl")).news().records[-SAMPLES:]],
            "findings": findings(Tail(found.file("findings.jsonl")).news().records),
        }

    def metrics(self, run: str, after: int = -1) -> dict[str, Any]:
        """GET /api/runs/ID/metrics."""
        records = Tail(self.path(run) / "metrics.jsonl").news().records
        return table([record for record in records if record["step"] > after])

    def difference(self, runs: Sequence[str]) -> dict[str, Any]:
        """GET /api/difference: the keys that do not have one value in all of them."""
        configs = [flatten(self.open(run).config) for run in runs]
        keys = dict.fromkeys(key for config in configs for key in config)
        rows = [(key, [config.get(key) for config in configs]) for key in keys]
        told = [{"key": key, "values": values, "same": False} for key, values in rows if _differ(values)]
        return {"keys": told}

    def state(self, run: str) -> dict[str, Any]:
        """A run's line in the list."""
        return self._summary(run, self.path(run))

    def pathless(self, text: str) -> str:
        """A sentence without where the runs lie on this machine."""
        for root in (str(self._root.resolve()), str(self._root.absolute()), str(self._root)):
            text = text.replace(f"{root}/", "") if root not in ("", ".", "/") else text
        return text

    def _identify(self, name: str) -> str:
        return hmac.new(self._key, name.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:24]

    def _summary(self, run: str, path: Path) -> dict[str, Any]:
        told: dict[str, Any] = {"id": run, "name": path.resolve().name, "model": None, "state": "damaged"}
        told |= dict.fromkeys(("step", "steps", "loss", "validation_loss", "started", "parameters", "why"))
        try:
            config = Run.open(path).config
            made = (path / "environment.json" if (path / "environment.json").exists() else path / "config.toml").stat()
        except (UserError, OSError) as problem:
            return {**told, "why": self.pathless(str(problem))}
        end = self._end(path / "metrics.jsonl")
        step = max([end["step"], *Run(path, config).steps()])
        steps = wanted(config)
        model = config.get("model")
        over = steps is not None and step >= steps
        return {
            **told,
            "model": model.get("kind") if isinstance(model, dict) else None,
            "state": "training" if held(path) else "finished" if over else "stopped",
            **end,
            "step": step,
            "steps": steps,
            "started": datetime.fromtimestamp(made.st_mtime, UTC).isoformat(timespec="seconds"),
            "parameters": self._parameters(path, config),
        }

    def _end(self, path: Path) -> dict[str, Any]:
        """How far a run's records go and what they say last; read again only when they have changed."""
        try:
            found = path.stat()
            sign = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            sign = (0, 0, 0)
        known = self._ends.get(path)
        if known is None or known[0] != sign:
            records = last(path, LAST)
            step = max((record["step"] for record in records if "diverged" not in record), default=0)
            told = {name: _newest(records, name) for name in ("loss", "validation_loss")}
            self._ends[path] = known = (sign, {"step": step, **told})
        return known[1]

    def _parameters(self, path: Path, config: dict[str, Any]) -> int | None:
        """How many the model has, counted once."""
        key = (str(path), (path / "config.toml").stat().st_mtime_ns)
        if key not in self._sizes:
            try:
                self._sizes[key] = model_size(config).parameters
            except Exception:  # a part that this version does not know: the list shows the run without it
                self._sizes[key] = None
        return self._sizes[key]


def wanted(config: Mapping[str, Any]) -> int | None:
    """How many steps a run was to have; None while a budget of time is not yet turned into steps."""
    train = config.get("train")
    steps = train.get("steps") if isinstance(train, dict) else None
    return steps if isinstance(steps, int) else None


def table(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Records as columns and rows, one a step: the numbers of each, thinned to what a curve can show."""
    joined: dict[int, dict[str, Any]] = {}
    for record in records:
        numbers = {key: value for key, value in record.items() if _numeric(value)}
        if len(numbers) > 1:  # more than its step
            joined.setdefault(record["step"], {}).update(numbers)
    records = thinned(list(joined.values()))
    there = dict.fromkeys(key for record in records for key, value in record.items() if _numeric(value))
    columns = [*(key for key in FIRST if key in there or key == "step"), *(key for key in there if key not in FIRST)]
    return {"columns": columns, "rows": [[number(record.get(key)) for key in columns] for record in records]}


def thinned(records: Sequence[Mapping[str, Any]], most: int = ROWS) -> list[Mapping[str, Any]]:
    """At most so many of them, evenly; those with a validation loss, which are few, before the others."""
    if len(records) <= most:
        return list(records)
    rare = [i for i, record in enumerate(records) if "validation_loss" in record]
    common = [i for i, record in enumerate(records) if "validation_loss" not in record]
    rare = _evenly(rare, most // 2)
    return [records[i] for i in sorted([*rare, *_evenly(common, most - len(rare))])]


def sample(record: Mapping[str, Any]) -> dict[str, Any]:
    """One sample as the page shows it."""
    text = f"{record.get('prompt') or ''}{record.get('text') or ''}"
    return {"step": record["step"], "text": text[:SAMPLE]}


def findings(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Findings as the page shows them; of one that was updated, the newest."""
    names = ("step", "since", "kind", "where", "what", "evidence", "cause", "change")
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        told = {name: record.get(name) for name in names}
        told["id"] = str(record.get("id") or f"{record.get('kind')}:{record.get('where')}")
        found.pop(told["id"], None)
        found[told["id"]] = told
    return list(found.values())[-FINDINGS:]


def number(value: Any) -> float | int | None:
    """A finite number, or None: a run folder spells NaN and infinity as text."""
    return value if _numeric(value) and not isinstance(value, str) and math.isfinite(value) else None


def _numeric(value: Any) -> bool:
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in (
        "NaN",
        "Infinity",
        "-Infinity",
    )


def _evenly(items: Sequence[int], most: int) -> list[int]:
    """So many of them, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _newest(records: Sequence[Mapping[str, Any]], key: str) -> float | int | None:
    return next((number(record[key]) for record in reversed(records) if key in record), None)


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] or type(value) is not type(values[0]) for value in values[1:])
