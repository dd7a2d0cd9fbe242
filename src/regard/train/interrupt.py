"""Ctrl-C and polite kills: noted at once, acted upon at the end of the step."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """While entered, the first SIGINT or SIGTERM only raises a flag; a second one ends the program as usual.

    Signals reach the main thread alone: anywhere else this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
