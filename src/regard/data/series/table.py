"""Time series as a table: a row for each point in time, a column for each series."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.records import Record, read_records
from regard.errors import UserError


class SeriesTable(NamedTuple):
    """Numbers over time."""

    values: NDArray[np.float64]  # [T, M]
    columns: tuple[str, ...]  # the names of the M series
    times: tuple[str, ...]  # of the rows; (): the file states none


def read_series(path: Path, columns: Sequence[str] = ()) -> SeriesTable:
    """The table of a .csv, .tsv or .jsonl file in the order of time. Without ``columns``, every column of numbers.

    The last column that is none gives the times of the rows.
    """
    records = [record for _, record in read_records(path)]
    names = [name for name in records[0] if is_number(records[0][name])]
    others = [name for name in records[0] if name not in names]
    chosen = tuple(columns) or tuple(names)
    if not chosen:
        raise UserError(f"{path} has no column of numbers; it has {', '.join(others)}")
    if missing := [name for name in chosen if name not in records[0]]:
        raise UserError(f"{path} has no column {missing[0]!r}; it has {', '.join(records[0])}")
    values = np.stack([_numbers(path, records, name) for name in chosen], axis=1)
    times = tuple(str(record.get(others[-1], "")) for record in records) if others else ()
    return SeriesTable(values, chosen, times)


def is_number(value: object) -> bool:
    """Whether a field is a finite number."""
    try:
        return bool(np.isfinite(float(value)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _numbers(path: Path, records: Sequence[Record], name: str) -> NDArray[np.float64]:
    try:
        found = np.array([float(record[name]) for record in records])
    except (TypeError, ValueError, KeyError):
        found = np.full(len(records), np.nan)
    if not np.isfinite(found).all():
        row = next(row for row, record in enumerate(records, 1) if not is_number(record.get(name)))
        given = records[row - 1].get(name, "")
        raise UserError(
            f"row {row} of {path} has {given!r} as {name!r}, which is no number; correct it, or choose other columns: "
            "--data.columns NAME,NAME"
        )
    return found
