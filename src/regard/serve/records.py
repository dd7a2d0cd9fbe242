"""Records of a run folder, read while another process writes them, and in the format of the API.

Incomplete and invalid lines are skipped: the page must show a run even if one of its records is damaged.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard, TypeVar

from regard.runs.disk import JsonObject, parse_object
from regard.serve.limits import FINDINGS, ROWS, SAMPLE
from regard.untrusted import open_plain

T = TypeVar("T")
Row = dict[str, str]  # the values of a step as JSON: they are sent far more often than they change

CHUNK = 4 * 2**20  # bytes per read
NO_FILE = (-1, -1, -1)  # in place of inode, size and time
HEAD = 256  # bytes at the beginning of a file by which it is recognized
#: These columns come first, in this order.
FIRST = ("step", "loss", "validation_loss", "lr")
FINDING = ("step", "since", "kind", "where", "what", "evidence", "cause", "change")
NONFINITE = ("NaN", "Infinity", "-Infinity")  # as a run folder stores them


class NewRecords(NamedTuple):
    """Records appended since the previous read."""

    records: list[JsonObject]
    restarted: bool  # the file was truncated or replaced, so earlier records are no longer valid


class JsonlTail:
    """An incremental reader: each `read` continues where the previous one ended."""

    def __init__(self, path: Path, last: int | None = None):
        """Start at the beginning of the file, or ``last`` bytes before its end."""
        self.path, self._last = path, last
        self._version, self._offset, self._head = NO_FILE, 0, b""

    def read(self) -> NewRecords:
        """Return the records of all complete lines since the previous call."""
        records: list[JsonObject] = []
        try:
            status = self.path.lstat()
            version = status.st_ino, status.st_size, status.st_mtime_ns
            if version == self._version:
                return NewRecords(records, False)
            with open(open_plain(self.path), "rb") as file:
                head = file.read(HEAD)  # a new file may have the inode of a removed one, but not its first bytes
                replaced = self._version[0] not in (-1, status.st_ino) or not head.startswith(self._head)
                restarted = replaced or status.st_size < self._offset
                if restarted:
                    self._offset = 0
                elif self._version[0] == -1 and self._last is not None:  # an incomplete first line is not valid JSON
                    self._offset = max(0, status.st_size - self._last)
                self._version, self._head = version, head
                file.seek(self._offset)
                while (data := file.read(CHUNK)) and (end := data.rfind(b"\n") + 1):
                    records += _parse(data[:end])
                    self._offset += end
                    file.seek(self._offset)
        except FileNotFoundError:
            known = self._version != NO_FILE
            self._version, self._offset, self._head = NO_FILE, 0, b""
            return NewRecords([], known)
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


def numbers_of(record: JsonObject) -> Row:
    """The numeric values of a record, the step among them."""
    numbers = ((key, value) for key, value in record.items() if _is_number(value) or value in NONFINITE)
    return {key: json.dumps(finite(value)) for key, value in numbers}


def table_of(rows: Sequence[Row], recorded: int) -> str:
    """Rows as JSON: the columns and lists of values, at most `ROWS` of them."""
    rows, keys = subsample(rows), {}
    for row in rows:
        keys |= row
    columns = [*(key for key in FIRST if key in keys or key == "step"), *(key for key in keys if key not in FIRST)]
    lines = ",".join([f"[{','.join([row.get(key, 'null') for key in columns])}]" for row in rows])
    return f'{{"columns":{json.dumps(columns)},"rows":[{lines}],"recorded":{recorded}}}'


def subsample(records: Sequence[dict[str, T]], limit: int = ROWS) -> list[dict[str, T]]:
    """Return at most ``limit`` evenly spaced records; those with a validation loss are preferred."""
    if len(records) <= limit:
        return list(records)
    validated = [i for i, record in enumerate(records) if "validation_loss" in record]
    others = [i for i, record in enumerate(records) if "validation_loss" not in record]
    validated = _evenly_spaced(validated, limit // 2)
    return [records[i] for i in sorted([*validated, *_evenly_spaced(others, limit - len(validated))])]


def sample_entry(record: JsonObject) -> JsonObject:
    """Return one text sample."""
    text = f"{record.get('prompt') or ''}{record.get('text') or ''}"
    return {"step": record["step"], "text": text if len(text) <= SAMPLE else f"{text[:SAMPLE]} … (cut)"}


def latest_findings(records: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the newest version of each finding, at most `FINDINGS`, ordered by update."""
    findings: dict[str, JsonObject] = {}
    for record in records:
        key = str(record.get("id") or f"{record.get('kind')}:{record.get('where')}")
        findings.pop(key, None)
        findings[key] = {name: record.get(name) for name in FINDING} | {"id": key}
    return list(findings.values())[-FINDINGS:]


def finite(value: object) -> float | int | None:
    """Return a finite number, or None."""
    return value if _is_number(value) and math.isfinite(value) else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _evenly_spaced(items: Sequence[int], limit: int) -> list[int]:
    """Return ``limit`` items including the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[round(i * (len(items) - 1) / (limit - 1))] for i in range(limit)]
