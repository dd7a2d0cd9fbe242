"""What is going on while a person waits: a line on standard error, once it takes more than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0  # seconds until something is said


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Says ``what``, and for how long, until it is over; gives a function that changes it.

    On a terminal one line is written over; elsewhere there is a new one now and then.
    """
    terminal, now, over = sys.stderr.isatty(), [what], threading.Event()
    began = time.monotonic()

    def tell() -> None:
        pause = PATIENCE
        while not over.wait(pause):
            pause = 0.5 if terminal else 10.0
            line = f"{now[0]}, {time.monotonic() - began:.0f} s"
            print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
        if terminal and pause != PATIENCE:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield lambda line: now.__setitem__(0, line)
    finally:
        over.set()
        teller.join()
