"""Standard error: a status line for operations that take more than two seconds, and notices."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from regard.untrusted import printable

T = TypeVar("T")
DELAY = 2.0  # seconds until the first line
_said: set[str] = set()


class Say(Protocol):
    """Changes the text of a status line; with the ``share`` that is done, the line ends with the time that is left."""

    def __call__(self, text: str, share: float = 0.0) -> None: ...


def clock(seconds: float) -> str:
    """A duration in hours, minutes and seconds.

    >>> clock(62.4), clock(3700)
    ('1:02', '1:01:40')
    """
    minutes, seconds = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def waiting(what: str) -> Iterator[Say]:
    """Print ``what`` and the elapsed time while the context runs; yields a function that changes the text.

    On a terminal one line is overwritten; elsewhere a new line is printed every ten seconds.
    """
    terminal, state, over = sys.stderr.isatty(), (what, 0.0), threading.Event()
    began = time.monotonic()

    def say(text: str, share: float = 0.0) -> None:
        nonlocal state
        state = text, share

    def show() -> None:
        pause = DELAY
        while not over.wait(pause):
            pause = 0.5 if terminal else 10.0
            (text, share), elapsed = state, time.monotonic() - began
            left = f", {clock(elapsed * (1 - share) / share)} left" if share else ""
            line = f"{text}, {elapsed:.0f} s{left}"
            print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if terminal and pause != DELAY:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield say
    finally:
        over.set()
        thread.join()


def notice(text: str) -> None:
    """Print a line, once per process, on rank 0 only."""
    if text not in _said and os.environ.get("RANK", "0") == "0":
        _said.add(text)
        print(printable(text), file=sys.stderr, flush=True)


def progress(items: Iterable[T], total: int, unit: str, size: Callable[[T], int] = lambda _: 1) -> Iterator[T]:
    """The items, with a status line of how much of ``total`` is done and how long the rest will take.

    ``size`` is an item's part of ``total``.
    """
    done = 0
    with waiting(f"0 of {total:,} {unit}") as say:
        for item in items:
            yield item
            done += size(item)
            say(f"{done:,} of {total:,} {unit}", min(1.0, done / max(1, total)))
