"""The folder of runs in the format of the API. Runs have opaque ids; paths never reach the client.

Only the notes on a run are ever written. A damaged run is listed with the error, so it does not hide the others.
"""

import hashlib
import hmac
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from regard.errors import UserError
from regard.report.config_diff import AUTOMATIC, flatten
from regard.report.inspection import ModelSize, model_size
from regard.runs import Run
from regard.runs.disk import JsonObject
from regard.runs.notes import read_notes
from regard.serve.limits import SAMPLES
from regard.serve.metrics_log import MetricsLog, metrics_log, progress_log
from regard.serve.records import JsonlTail, latest_findings, sample_entry
from regard.untrusted import open_plain, read_plain

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

T = TypeVar("T")
OMITTED = {"train.lanes": 1}  # what a key means that a config does not have
RECENT = 600.0  # seconds: a trainer on another machine is assumed alive if it wrote metrics within this time


class NotFoundError(LookupError):
    """There is no run or trace with the given id."""


class RunLibrary:
    """The runs in one folder, or a single run if ``root`` is a run folder."""

    def __init__(self, root: Path):
        self._root = root
        self._key = secrets.token_bytes(32)
        self._known: dict[str, Path] = {}

    def paths(self) -> dict[str, Path]:
        """Return the folders by id: an HMAC of the name under a key of this process."""
        single = (self._root / "config.toml").is_file()
        paths = [self._root] if single else [path.parent for path in self._root.glob("[!.]*/config.toml")]
        return {self._make_id(path.resolve().name): path for path in sorted(paths)}

    def path(self, run: str) -> Path:
        """Return the folder of a run."""
        path = self._known.get(run)  # so that a folder of many runs is not listed for every request
        if path is None or not (path / "config.toml").is_file():
            self._known = self.paths()
            path = self._known.get(run)
        if path is None:
            raise NotFoundError("there is no such run; it may have been removed: reload the page")
        return path

    def comparisons(self) -> dict[str, Path]:
        """Return the pages that `regard compare` has written into this folder, by id, sorted by name."""
        pages = sorted(self._root.glob("comparisons/[!.]*/compare.html"))
        return {self._make_id(f"comparisons/{path.parent.name}"): path for path in pages}

    def open(self, run: str) -> Run:
        """Open a run by id."""
        return open_run(self.path(run))

    def runs(self) -> list[JsonObject]:
        """Return the summaries of all runs, newest first."""
        summaries = [self._summary(run, path) for run, path in self.paths().items()]
        return sorted(summaries, key=lambda summary: (summary["started"] or "", summary["name"]), reverse=True)

    def detail(self, run: str) -> JsonObject:
        """Return the config, environment, checkpoints, samples and findings of a run."""
        opened = self.open(run)
        try:
            environment = opened.environment
        except UserError:
            environment = {}
        return self.summary(run) | {
            "config": opened.config,
            "environment": environment,
            "checkpoints": opened.steps(),
            "samples": _read(_samples, opened.file("samples.jsonl")),
            "findings": _read(_findings, opened.file("findings.jsonl")),
            "report": opened.file("report.html").is_file(),
            "tokenizer": _read(_hash, opened.file("tokenizer.json")),
        }

    def metrics(self, run: str, after: int = -1) -> str:
        """Return the metrics table of the steps after ``after`` as JSON."""
        return self.log(run).table(after)

    def log(self, run: str) -> MetricsLog:
        """Return the metrics of a run, with what is new."""
        return metrics_log(self.path(run) / "metrics.jsonl").refresh()

    def difference(self, runs: Sequence[str]) -> JsonObject:
        """Return the config keys whose values differ between the runs, without those that a run sets by itself."""
        configs = [flatten(self.open(run).config) for run in runs]
        keys = dict.fromkeys(key for config in configs for key in config if key not in AUTOMATIC)
        rows = [(key, [config.get(key, OMITTED.get(key)) for config in configs]) for key in keys]
        # 1, 1.0 and True are equal, but not the same setting.
        differing = [(key, values) for key, values in rows if len(set(map(repr, values))) > 1]
        return {"keys": [{"key": key, "values": values} for key, values in differing]}

    def summary(self, run: str) -> JsonObject:
        """Return the entry of a run in the list of runs."""
        return self._summary(run, self.path(run))

    def remove_paths(self, text: str) -> str:
        """Return ``text`` without the path of the folder of runs."""
        for root in (str(self._root.resolve()), str(self._root.absolute()), str(self._root)):
            text = text.replace(f"{root}/", "") if root not in ("", ".", "/") else text
        return text

    def _make_id(self, name: str) -> str:
        return hmac.new(self._key, name.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:24]

    def _summary(self, run: str, path: Path) -> JsonObject:
        summary: JsonObject = {"id": run, "name": path.resolve().name, "model": None, "state": "damaged"}
        empty = ("step", "total_steps", "loss", "validation_loss", "started", "parameters", "error")
        summary |= dict.fromkeys(empty) | {"flops_per_token": None, "checkpoint": None, "tags": [], "note": ""}
        try:
            opened = open_run(path)
            config = opened.config
            first = path / "environment.json"
            started = (first if first.exists() else path / "config.toml").stat().st_mtime
        except (UserError, OSError) as error:
            return {**summary, "error": self.remove_paths(str(error))}
        progress = progress_log(path / "metrics.jsonl").refresh()
        checkpoints = opened.steps()
        size = _model_size(path, *_versions(path))
        model, total_steps = config.get("model"), opened.planned_steps
        finished = total_steps is not None and max([progress["step"], *checkpoints]) >= total_steps
        logged = progress["step"] or max(checkpoints, default=0)  # where the curves end
        return {
            **summary,
            "model": model.get("kind") if isinstance(model, dict) else None,
            "state": "training" if is_training(path) else "finished" if finished else "stopped",
            **progress,
            "step": max(logged, total_steps or 0) if finished else logged,
            "total_steps": total_steps,
            "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
            "parameters": size and size.parameters,
            "flops_per_token": size and size.flops,
            "checkpoint": max(checkpoints, default=None),
            **read_notes(opened)._asdict(),
        }


def file_version(path: Path) -> tuple[int, ...]:
    """Return a value that changes when the file changes, for use as a cache key."""
    try:
        status = path.lstat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def open_run(path: Path) -> Run:
    """Open a run; its files are read again only if they have changed."""
    return Run(path, _config(path, *_versions(path)))


def _versions(path: Path) -> tuple[tuple[int, ...], ...]:
    """The versions of the files that decide whether a run can be opened."""
    return tuple(file_version(path / name) for name in ("config.toml", "environment.json", "MANIFEST.json"))


def _read(reader: Callable[[Path, tuple[int, ...]], T], path: Path) -> T:
    """What a cached reader returns for the present version of a file."""
    return reader(path, file_version(path))


@lru_cache(1024)
def _config(path: Path, *versions: tuple[int, ...]) -> JsonObject:
    return Run.open(path).config


@lru_cache(64)
def _samples(path: Path, version: tuple[int, ...]) -> list[JsonObject]:
    return [sample_entry(record) for record in JsonlTail(path).read().records[-SAMPLES:]]


@lru_cache(64)
def _findings(path: Path, version: tuple[int, ...]) -> list[JsonObject]:
    return latest_findings(JsonlTail(path).read().records)


@lru_cache(1024)
def _hash(path: Path, version: tuple[int, ...]) -> str | None:
    """Return a short hash of a file; None if there is none."""
    try:
        return hashlib.sha256(read_plain(path)).hexdigest()[:16]
    except OSError:
        return None


@lru_cache(4096)
def _model_size(path: Path, *versions: tuple[int, ...]) -> ModelSize | None:
    try:
        return model_size(Run.open(path))
    except Exception:  # the config uses a component that this version does not have
        return None


def is_training(path: Path) -> bool:
    """Return True if a trainer holds the lock of the run in ``path``, without disturbing the trainer.

    The lock file stays after training ends, with the trainer's process id. The lock is tried only if that process is
    alive: an attempt, however short, could make a starting trainer fail. It is needed because ids are reused.
    """
    if fcntl is None:
        return _recently_logged(path)
    try:
        descriptor = open_plain(path / ".lock")
    except OSError:
        return False
    with open(descriptor, "rb") as lock:
        match = re.match(r"process (\d+) on (.*)", lock.read(200).decode("utf-8", "replace"))
        if match is None:
            return False
        local = match[2].strip() == (platform.node() or "this machine")
        if not (_is_alive(int(match[1])) if local else _recently_logged(path)):
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:  # it belongs to another user
        return True
    except (OSError, OverflowError):
        return False
    return True


def _recently_logged(path: Path) -> bool:
    try:
        return time.time() - (path / "metrics.jsonl").lstat().st_mtime < RECENT
    except OSError:
        return False
