"""Records of a user's file: lines of JSON (.jsonl), or a table with a header (.csv, .tsv), of limited size."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.untrusted import check_depth, read_plain, unreadable

LARGEST = 2**29  # bytes of a file
LONGEST = 2**24  # characters of a field of a table

Record = Mapping[str, Any]


def read_records(path: Path) -> list[tuple[int, Record]]:
    """The records of a file, each with the number of its line, or of its row in a table."""
    try:
        text = read_plain(path, LARGEST, follow=True).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; check the path") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8 text; convert it") from None
    except OSError as error:
        raise unreadable(path, error) from error
    tables = {".csv": ",", ".tsv": "\t"}
    found = list(_table(path, text, tables[path.suffix]) if path.suffix in tables else _json_lines(path, text))
    if not found:
        raise UserError(f"{path} has no records; give a .jsonl file, or a .csv or .tsv file with a header")
    return found


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, Record]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            check_depth(record)
        except (ValueError, RecursionError) as error:
            raise UserError(f"line {number} of {path} is no JSON ({error}); each line is one record") from None
        if not isinstance(record, dict):
            raise UserError(f"line {number} of {path} is no JSON object; give one with a field for each part")
        yield number, record


def _table(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, Record]]:
    before = csv.field_size_limit(LONGEST)
    try:
        for number, row in enumerate(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter), 1):
            yield number, {name: value for name, value in row.items() if name is not None and value is not None}
    except csv.Error as error:
        raise UserError(f"{path} is no table: {error}; correct the file") from None
    finally:
        csv.field_size_limit(before)
