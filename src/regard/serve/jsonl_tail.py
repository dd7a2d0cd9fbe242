"""Read JSON Lines files while another process writes them.

Incomplete and invalid lines are skipped: the page must show a run even if one of its records is damaged.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import NamedTuple

from regard.runs.disk import JsonObject, parse_object

CHUNK = 4 * 2**20  # bytes per read


class NewRecords(NamedTuple):
    """Records appended since the previous read."""

    records: list[JsonObject]
    restarted: bool  # the file was truncated or replaced, so earlier records are no longer valid


class JsonlTail:
    """An incremental reader: each `read` continues where the previous one ended."""

    def __init__(self, path: Path, last: int | None = None):
        """Start at the beginning of the file, or ``last`` bytes before its end."""
        self.path, self._last = path, last
        self._inode, self._offset = -1, 0

    def read(self) -> NewRecords:
        """Return the records of all complete lines since the previous call."""
        records: list[JsonObject] = []
        try:
            status = self.path.stat()
            if not stat.S_ISREG(status.st_mode):
                return NewRecords(records, False)
            restarted = self._inode not in (-1, status.st_ino) or status.st_size < self._offset
            if restarted:
                self._offset = 0
            elif self._inode == -1 and self._last is not None:  # an incomplete first line is not valid JSON
                self._offset = max(0, status.st_size - self._last)
            self._inode = status.st_ino
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                while (data := file.read(CHUNK)) and (end := data.rfind(b"\n") + 1):
                    records += _parse(data[:end])
                    self._offset += end
                    file.seek(self._offset)
        except OSError:
            return NewRecords(records, False)
        return NewRecords(records, restarted)


def _parse(data: bytes) -> list[JsonObject]:
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
