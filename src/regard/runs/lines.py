"""JSON Lines with a step (metrics, samples, findings) that tolerate a killed writer."""

import json
import math
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from regard.errors import UserError
from regard.runs.disk import JsonObject, parse_object, plain, replace_file, sync, writing
from regard.untrusted import open_plain, read_plain, unreadable

LARGEST = 2**30  # bytes


class StepLines:
    """A file with one JSON object per line, each with an integer ``step``.

    A process that is killed while writing can leave an incomplete last line: readers skip it, and the next writer
    removes it. An incomplete line anywhere else is an error that names the line.
    """

    def __init__(self, path: Path):
        self.path = path

    def append(self, record: Mapping[str, object]) -> None:
        """Append one record, unbuffered.

        NaN and the infinities become the strings "NaN", "Infinity" and "-Infinity", which Python's `float` and
        JavaScript's `Number` parse, so that the file stays valid JSON.
        """
        step = record.get("step")
        if not _is_step(step):
            raise ValueError(f"a record of {self.path.name} needs an integer 'step' >= 0, got {step!r}")
        line = json.dumps(plain(dict(record), _spell), allow_nan=False).encode() + b"\n"
        # Opened for each record: there is nothing to close, and ``cut`` may replace the file in between.
        with (
            writing(str(self.path)),
            open(open_plain(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b", buffering=0) as file,
        ):
            _repair_end(file, self.path)
            written = 0
            while written < len(line):
                written += file.write(line[written:])

    def read(self) -> list[JsonObject]:
        """All complete records, oldest first; none if the file does not exist."""
        lines = self._lines()
        records = [_parse(line) for line in lines]
        if records and records[-1] is None and not lines[-1].endswith(b"\n"):
            records.pop()
        if None in records:
            raise self._damage(1 + records.index(None))
        return [record for record in records if record is not None]

    def cut(self, step: int) -> None:
        """Remove the records after ``step`` atomically; the others are unchanged."""
        lines = self._lines()
        kept: list[bytes] = []
        damage = None
        for number, line in enumerate(lines, start=1):
            record = _parse(line)
            if record is None:
                damage = damage or number
            elif record["step"] <= step:
                # A power failure leaves damage at the end, which is removed; before a record to keep, it is an error.
                if damage is not None:
                    raise self._damage(damage)
                kept.append(line if line.endswith(b"\n") else line + b"\n")
        if kept != lines:
            replace_file(self.path, b"".join(kept))

    def sync(self) -> None:
        """Flush all records to disk."""
        if self.path.exists():
            sync(self.path)

    def _lines(self) -> list[bytes]:
        try:
            data = read_plain(self.path, LARGEST)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self.path, error) from error
        *whole, last = data.split(b"\n")  # not splitlines(): text may hold other line breaks
        return [line + b"\n" for line in whole] + ([last] if last else [])

    def _damage(self, number: int) -> UserError:
        return UserError(
            f"line {number} of {self.path} is not a record of a run (a JSON object with an integer 'step'); "
            "restore the file from a copy, or remove that line"
        )


def _parse(line: bytes) -> JsonObject | None:
    # A proper prefix of a JSON object is not a JSON object, so an incomplete line is never a record.
    try:
        record = parse_object(line)
    except ValueError:
        return None
    return record if _is_step(record.get("step")) else None


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _spell(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _repair_end(file: FileIO, path: Path) -> None:
    """Terminate the last line if it is complete, else remove it, so that the next record starts a line."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return
    if size > LARGEST:
        raise UserError(f"{path} is a file of {size:,} bytes, and {LARGEST:,} is the most; restore it from a copy")
    file.seek(0)
    data = file.readall()
    start = data.rfind(b"\n") + 1
    if _parse(data[start:]) is None:
        file.truncate(start)
    else:
        file.write(b"\n")
