"""SIGINT and SIGTERM set a flag, which the training loop reads at the end of each step."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """A context in which the first SIGINT or SIGTERM sets ``requested``; a second one raises KeyboardInterrupt.

    Python delivers signals to the main thread only; in another thread this context does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
