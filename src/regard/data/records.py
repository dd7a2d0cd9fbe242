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
DELIMITERS = {".csv": ",", ".tsv": "\t"}

Record = Mapping[str, Any]


def read_records(path: Path) -> list[tuple[int, Record]]:
    """The records of a file, each with the number of its line, or of its row in a table."""
    found = list(table(path) if path.suffix in DELIMITERS else json_lines(path))
    if not found:
        raise UserError(f"{path} has no records; give a .jsonl file, or a .csv or .tsv file with a header")
    return found


def read_text(path: Path) -> str:
    """The content of a plain file."""
    try:
        return read_plain(path, LARGEST, follow=True).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; check the path") from None
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"line {line} of {path} is not UTF-8 text; convert the file") from None


def json_lines(path: Path) -> Iterator[tuple[int, Record]]:
    """The objects of a file with one on each line."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            check_depth(record)
        except (ValueError, RecursionError) as error:
            raise UserError(f"line {number} of {path} is no JSON: {error}; each line is one record") from None
        if not isinstance(record, dict):
            raise UserError(f"line {number} of {path} is no JSON object; give one with a field for each part")
        yield number, record


def table(path: Path) -> Iterator[tuple[int, Record]]:
    """The rows of a .csv or .tsv file by the names in its first row. A .tsv file has no quotes."""
    before = csv.field_size_limit(LONGEST)
    quoting = csv.QUOTE_NONE if path.suffix == ".tsv" else csv.QUOTE_MINIMAL
    try:
        text = io.StringIO(read_text(path), newline="")
        for number, row in enumerate(csv.DictReader(text, delimiter=DELIMITERS[path.suffix], quoting=quoting), 1):
            yield number, {name: value for name, value in row.items() if name is not None and value is not None}
    except csv.Error as error:
        raise UserError(f"{path} is no table: {error}; correct the file") from None
    finally:
        csv.field_size_limit(before)
