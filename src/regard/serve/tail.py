"""JSON Lines that somebody else is writing: what is new since the last look, and the end of a long file.

Only whole lines count. A torn or damaged one is passed over: a page that shows a run must not fail where the trainer
would not.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from regard.runs.disk import parse_object

PIECE = 4 * 2**20  # bytes read at a look; the rest follows at the next


class News(NamedTuple):
    """What a look found."""

    records: list[dict[str, Any]]
    restarted: bool  # the file was cut or replaced: what was read before no longer holds


class Tail:
    """A file's records, from where the last look ended."""

    def __init__(self, path: Path):
        self.path = path
        self._inode, self._offset = -1, 0

    def news(self) -> News:
        """Everything whole that came since; the first time, all of it."""
        try:
            found = os.stat(self.path)
        except OSError:
            return News([], False)
        if not stat.S_ISREG(found.st_mode):
            return News([], False)
        restarted = self._inode not in (-1, found.st_ino) or found.st_size < self._offset
        if restarted or self._inode == -1:
            self._inode, self._offset = found.st_ino, 0
        if found.st_size == self._offset:
            return News([], restarted)
        records: list[dict[str, Any]] = []
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            while data := file.read(PIECE):
                whole = data[: data.rfind(b"\n") + 1]
                if not whole:
                    break
                records += parsed(whole)
                self._offset += len(whole)
                file.seek(self._offset)
        return News(records, restarted)


def last(path: Path, size: int) -> list[dict[str, Any]]:
    """The whole records within the last `size` bytes of a file."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return []
        with open(path, "rb") as file:
            start = max(0, found.st_size - size)
            file.seek(start)
            data = file.read(size)
    except OSError:
        return []
    if start:
        data = data[data.find(b"\n") + 1 :]
    return parsed(data)


def parsed(data: bytes) -> list[dict[str, Any]]:
    """The records of a run among some lines."""
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
