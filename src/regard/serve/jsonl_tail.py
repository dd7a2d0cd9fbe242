"""Read JSON Lines files while another process writes them.

Incomplete and invalid lines are skipped: the page must show a run even if one of its records is damaged.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from regard.runs.disk import parse_object

CHUNK = 4 * 2**20  # bytes per read


class NewRecords(NamedTuple):
    """Records appended since the previous read."""

    records: list[dict[str, Any]]
    restarted: bool  # the file was truncated or replaced, so earlier records are no longer valid


class JsonlTail:
    """An incremental reader: each `read` continues where the previous one ended."""

    def __init__(self, path: Path):
        self.path = path
        self._inode, self._offset = -1, 0

    def read(self) -> NewRecords:
        """Return the records of all complete lines that are new; the first call returns the whole file."""
        status = _stat(self.path)
        if status is None:
            return NewRecords([], False)
        restarted = self._inode not in (-1, status.st_ino) or status.st_size < self._offset
        if restarted:
            self._offset = 0
        self._inode = status.st_ino
        records: list[dict[str, Any]] = []
        if status.st_size > self._offset:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                while (data := file.read(CHUNK)) and (end := data.rfind(b"\n") + 1):
                    records += _parse(data[:end])
                    self._offset += end
                    file.seek(self._offset)
        return NewRecords(records, restarted)


def read_last(path: Path, size: int) -> list[dict[str, Any]]:
    """Return the complete records within the last ``size`` bytes of a file."""
    status = _stat(path)
    if status is None:
        return []
    start = max(0, status.st_size - size)
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(size)
    except OSError:
        return []
    return _parse(data[data.find(b"\n") + 1 :] if start else data)


def _stat(path: Path) -> os.stat_result | None:
    """Return the status of a regular file, or None."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _parse(data: bytes) -> list[dict[str, Any]]:
    """Return the valid records: JSON objects with a step."""
    records = []
    for line in data.split(b"\n"):
        try:
            record = parse_object(line)
        except ValueError:
            continue
        step = record.get("step")
        if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
            records.append(record)
    return records
