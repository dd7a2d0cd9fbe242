"""Records of a run folder in the format of the API: metrics tables, samples and findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from regard.runs.disk import JsonObject
from regard.serve.limits import FINDINGS, ROWS, SAMPLE

#: These columns come first, in this order.
FIRST = ("step", "loss", "validation_loss", "lr")
FINDING = ("step", "since", "kind", "where", "what", "evidence", "cause", "change")
NONFINITE = ("NaN", "Infinity", "-Infinity")  # as a run folder stores them

Record = Mapping[str, Any]


def metrics_table(records: Sequence[Record]) -> JsonObject:
    """Return the numeric values as columns and rows, one row per step, at most `ROWS` rows."""
    merged: dict[int, JsonObject] = {}
    for record in records:
        numbers = {key: value for key, value in record.items() if _is_numeric(value)}
        if len(numbers) > 1:  # more than the step
            merged.setdefault(record["step"], {}).update(numbers)
    rows = subsample(list(merged.values()))
    keys = dict.fromkeys(key for row in rows for key in row)
    columns = [*(key for key in FIRST if key in keys or key == "step"), *(key for key in keys if key not in FIRST)]
    return {"columns": columns, "rows": [[finite(row.get(key)) for key in columns] for row in rows]}


def subsample(records: Sequence[Record], limit: int = ROWS) -> list[Record]:
    """Return at most ``limit`` evenly spaced records; those with a validation loss are preferred."""
    if len(records) <= limit:
        return list(records)
    validated = [i for i, record in enumerate(records) if "validation_loss" in record]
    others = [i for i, record in enumerate(records) if "validation_loss" not in record]
    validated = _evenly_spaced(validated, limit // 2)
    return [records[i] for i in sorted([*validated, *_evenly_spaced(others, limit - len(validated))])]


def sample_entry(record: Record) -> JsonObject:
    """Return one text sample."""
    text = f"{record.get('prompt') or ''}{record.get('text') or ''}"
    return {"step": record["step"], "text": text[:SAMPLE]}


def latest_findings(records: Sequence[Record]) -> list[JsonObject]:
    """Return the newest version of each finding, at most `FINDINGS`, ordered by update."""
    findings: dict[str, JsonObject] = {}
    for record in records:
        key = str(record.get("id") or f"{record.get('kind')}:{record.get('where')}")
        findings.pop(key, None)
        findings[key] = {name: record.get(name) for name in FINDING} | {"id": key}
    return list(findings.values())[-FINDINGS:]


def latest_value(records: Sequence[Record], key: str) -> float | int | None:
    """Return the last value of ``key``, or None if it is missing or not finite."""
    return next((finite(record[key]) for record in reversed(records) if key in record), None)


def finite(value: Any) -> float | int | None:
    """Return a finite number, or None."""
    return value if _is_numeric(value) and value not in NONFINITE and math.isfinite(value) else None


def _is_numeric(value: Any) -> bool:
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in NONFINITE


def _evenly_spaced(items: Sequence[int], limit: int) -> list[int]:
    """Return ``limit`` items including the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[round(i * (len(items) - 1) / (limit - 1))] for i in range(limit)]
