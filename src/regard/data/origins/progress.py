"""Saying how far a long piece of work is: nothing for two seconds, then a line on the error stream."""

from __future__ import annotations

import functools
import os
import sys
import time

_PATIENCE = 2.0  # seconds without a word
_PERIODS = {True: 0.2, False: 10.0}  # seconds between two words: on a terminal one line is rewritten, a log grows


class ProgressLine:
    """How far something is. Used as a context manager, so that the line ends with the work, done or not.

    >>> with ProgressLine("reading notes.txt", 100) as progress:
    ...     progress.advance(40)
    """

    def __init__(self, doing: str, total: int | None = None) -> None:
        """`total` and what is `advance`d are bytes; None: nobody knows how many there will be."""
        self._doing, self._total, self._done = doing, total, 0
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + _PATIENCE
        self._written = 0  # columns of the line that stands on the terminal

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._written:
            print("\r" + " " * self._written, end="\r", file=sys.stderr, flush=True)

    def advance(self, amount: int = 0) -> None:
        """So much more is done; 0 says that the work still goes on."""
        self._done += amount
        if time.monotonic() < self._next or not first_process():
            return
        self._next = time.monotonic() + _PERIODS[self._terminal]
        line = f"{self._doing}: {self._far()}"
        if self._terminal:
            print("\r" + line.ljust(self._written), end="", file=sys.stderr, flush=True)
            self._written = len(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def _far(self) -> str:
        if self._total:
            return f"{min(self._done / self._total, 1):.0%} of {human_size(self._total)}"
        return human_size(self._done) if self._done else "still waiting"


@functools.cache
def say(text: str) -> None:
    """A remark to the person, on the error stream, once; of several processes the first one speaks."""
    if first_process():
        print(text, file=sys.stderr, flush=True)


def first_process() -> bool:
    """Whether this is the only process, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


def human_size(count: int) -> str:
    """A number of bytes for people.

    >>> human_size(999), human_size(4_850_416), human_size(100_000_000)
    ('999 B', '4.9 MB', '100 MB')
    """
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
