"""Standard error: a status line for operations that take more than two seconds, and notices."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from regard.untrusted import printable

T = TypeVar("T")
DELAY = 2.0  # seconds until the first line
_said: set[str] = set()


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Print ``what`` and the elapsed time while the context runs; yields a function that changes the text.

    On a terminal one line is overwritten; elsewhere a new line is printed every ten seconds.
    """
    terminal, text, over = sys.stderr.isatty(), [what], threading.Event()
    began = time.monotonic()

    def show() -> None:
        pause = DELAY
        while not over.wait(pause):
            pause = 0.5 if terminal else 10.0
            line = f"{text[0]}, {time.monotonic() - began:.0f} s"
            print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if terminal and pause != DELAY:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield lambda line: text.__setitem__(0, line)
    finally:
        over.set()
        thread.join()


def notice(text: str) -> None:
    """Print a line, once per process, on rank 0 only."""
    if text not in _said and os.environ.get("RANK", "0") == "0":
        _said.add(text)
        print(printable(text), file=sys.stderr, flush=True)


def progress(items: Iterable[T], total: int, unit: str, size: Callable[[T], int] = lambda _: 1) -> Iterator[T]:
    """The items, with a status line of how much of ``total`` is done; ``size`` is an item's part of it."""
    done = 0
    with waiting(f"0 of {total:,} {unit}") as say:
        for item in items:
            yield item
            done += size(item)
            say(f"{done:,} of {total:,} {unit}")
