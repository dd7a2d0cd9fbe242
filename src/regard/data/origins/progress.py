"""Progress of long operations: after two seconds, a line on stderr."""

from __future__ import annotations

import functools
import os
import sys
import time

_PATIENCE = 2.0  # seconds before the first line
_PERIODS = {True: 0.2, False: 10.0}  # seconds between two lines, on a terminal (one line is rewritten) and in a log


class ProgressLine:
    """A progress line, used as a context manager, so that it is erased at the end.

    >>> with ProgressLine("reading notes.txt", 100) as progress:
    ...     progress.advance(40)
    """

    def __init__(self, doing: str, total: int | None = None) -> None:
        """``total``: in bytes; None: unknown."""
        self._doing, self._total, self._done = doing, total, 0
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + _PATIENCE
        self._written = 0  # columns of the line on the terminal

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._written:
            print("\r" + " " * self._written, end="\r", file=sys.stderr, flush=True)

    def advance(self, amount: int = 0) -> None:
        """Add ``amount`` bytes; 0 only refreshes the line."""
        self._done += amount
        if time.monotonic() < self._next or not first_process():
            return
        self._next = time.monotonic() + _PERIODS[self._terminal]
        line = f"{self._doing}: {self._amount()}"
        if self._terminal:
            print("\r" + line.ljust(self._written), end="", file=sys.stderr, flush=True)
            self._written = len(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def _amount(self) -> str:
        if self._total:
            return f"{min(self._done / self._total, 1):.0%} of {human_size(self._total)}"
        return human_size(self._done) if self._done else "still waiting"


@functools.cache
def say(text: str) -> None:
    """Print a message to stderr, once, on rank 0 only."""
    if first_process():
        print(text, file=sys.stderr, flush=True)


def first_process() -> bool:
    """Whether this is rank 0."""
    return os.environ.get("RANK", "0") == "0"


def human_size(count: int) -> str:
    """A number of bytes, readable.

    >>> human_size(999), human_size(4_850_416), human_size(100_000_000)
    ('999 B', '4.9 MB', '100 MB')
    """
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
