"""findings.jsonl: the doctor's findings. A later record with the same kind and place replaces an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.runs.folder import Run
from regard.runs.lines import StepLines

FILE = "findings.jsonl"


def note(run: Run, record: Mapping[str, Any]) -> None:
    """Append one record, with an integer "step", a "kind" and a "where"."""
    _lines(run).append(dict(record))


def noted(run: Run) -> list[dict[str, Any]]:
    """The newest record of every kind and place, in the order of their first records."""
    found: dict[tuple[Any, Any], dict[str, Any]] = {}
    for record in _lines(run).read():
        found[record.get("kind"), record.get("where")] = record
    return list(found.values())


def cut(run: Run, step: int) -> None:
    """Remove the records after ``step``, from which a run is resumed."""
    _lines(run).cut(step)


def _lines(run: Run) -> StepLines:
    return StepLines(run.file(FILE))
