"""Work off the event loop: threads that take one piece after another, and say no when too many wait.

The threads are daemons: a long pass through a model must not keep Ctrl-C waiting.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from regard.serve.limits import WAITING

T = TypeVar("T")
Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]


class Busy(Exception):
    """More work waits than the server takes on."""


class Worker:
    """`workers` threads and their queue. With one worker the pieces of work never overlap."""

    def __init__(self, workers: int = 1, waiting: int = WAITING):
        self._jobs: queue.Queue[Job] = queue.Queue(waiting)
        for _ in range(workers):
            threading.Thread(target=self._work, daemon=True).start()

    async def do(self, work: Callable[[], T]) -> T:
        """The outcome of `work`, done by one of the threads."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        try:
            self._jobs.put_nowait((work, loop, future))
        except queue.Full:
            raise Busy from None
        return await future

    def _work(self) -> None:
        while True:
            work, loop, future = self._jobs.get()
            if future.cancelled():  # who asked has gone
                continue
            try:
                _hand(loop, future, work(), None)
            except BaseException as error:
                _hand(loop, future, None, error)


def _hand(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    def give() -> None:
        if not future.done():
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    try:
        loop.call_soon_threadsafe(give)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return
