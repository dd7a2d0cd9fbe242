"""Reading files that hold text: plain or compressed (.gz, .zst), lines of JSON (.jsonl), tables (.parquet)."""

import gzip
import importlib
import io
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from regard.data.origins.progress import ProgressLine
from regard.errors import UserError

_ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
_ROWS = 64  # of a table, read at once


def form(path: Path) -> str:
    """The suffix of a file's name, without that of its compression.

    >>> form(Path("pages.jsonl.gz")), form(Path("notes.txt"))
    ('.jsonl', '.txt')
    """
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in (".gz", ".zst") else suffix


@contextmanager
def opened(path: Path, progress: ProgressLine | None = None) -> Iterator[io.BufferedIOBase]:
    """The file, decompressed. A file that cannot be read or is damaged is a ``UserError``, also while it is read."""
    suffix = path.suffix.lower()
    zstd = _extra(_ZSTD, path, "zst") if suffix == ".zst" else None
    damage = (EOFError, zlib.error, gzip.BadGzipFile, *([] if zstd is None else [zstd.ZstdError]))
    try:
        with io.BufferedReader(_WatchedFile(path, progress)) as raw:
            if zstd is not None:
                yield zstd.ZstdFile(raw)
            else:
                yield gzip.GzipFile(fileobj=raw) if suffix == ".gz" else raw
    except damage as error:
        raise UserError(f"{path} is damaged or incomplete ({error}); get it again") from error
    except OSError as error:
        raise unreadable(path, error) from error


def records(path: Path, field: str, progress: ProgressLine) -> Iterator[bytes] | None:
    """The texts of a file of records, in UTF-8; None if the file is not of records but one text."""
    if form(path) == ".jsonl":
        return _json_lines(path, field, progress)
    return _table(path, field, progress) if form(path) == ".parquet" else None


def unreadable(path: Path, error: OSError) -> UserError:
    """The error for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"there is no file {path}; check the path")
    if isinstance(error, IsADirectoryError):
        return UserError(f"{path} is a folder; give one text file")
    return UserError(f"cannot read {path}: {error.strerror or error}")


class _WatchedFile(io.FileIO):
    """A file that reports the bytes read."""

    def __init__(self, path: Path, progress: ProgressLine | None) -> None:
        super().__init__(path)
        self._progress = progress

    def readinto(self, buffer, /) -> int:
        count = super().readinto(buffer) or 0
        if count and self._progress is not None:
            self._progress.advance(count)
        return count


def _json_lines(path: Path, field: str, progress: ProgressLine) -> Iterator[bytes]:
    with opened(path, progress) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                raise UserError(f"line {number} of {path} is no JSON; each line of a .jsonl file is a record") from None
            if not isinstance(record, dict) or field not in record:
                raise _no_field(path, f"line {number} of", field, record if isinstance(record, dict) else ())
            yield _utf8(path, f"line {number}", field, record[field])


def _table(path: Path, field: str, progress: ProgressLine) -> Iterator[bytes]:
    parquet, arrow = _extra("pyarrow.parquet", path, "parquet"), _extra("pyarrow", path, "parquet")
    number = 0
    with opened(path, progress) as file:
        try:
            table = parquet.ParquetFile(file, pre_buffer=False)
            if field not in table.schema_arrow.names:
                raise _no_field(path, "the table", field, table.schema_arrow.names)
            for batch in table.iter_batches(_ROWS, columns=[field], use_threads=False):
                for text in batch.column(0).to_pylist():
                    number += 1
                    yield _utf8(path, f"row {number}", field, text)
        except (arrow.ArrowException, OSError) as error:
            raise UserError(f"{path} is damaged, or no Parquet file ({error}); get it again") from error


def _utf8(path: Path, where: str, field: str, text: object) -> bytes:
    """A record's text; a missing one is empty."""
    if not isinstance(text, str | None):
        raise UserError(f"{field!r} in {where} of {path} is no text ({type(text).__name__}); name it with --data.field")
    try:
        return (text or "").encode()
    except UnicodeEncodeError:
        raise UserError(f"{field!r} in {where} of {path} has half of a surrogate pair; leave it out") from None


def _no_field(path: Path, where: str, field: str, names) -> UserError:
    known = f"it has: {', '.join(map(str, names))}" if names else "it is no record with fields"
    return UserError(f"{where} {path} has no field {field!r}; {known}; name the one that holds the text: --data.field")


def _extra(module: str, path: Path, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0] if extra == "parquet" else module
        raise UserError(f"reading {path} needs {package}; install it: pip install 'regard[{extra}]'") from None
