"""Thread pools with a bounded queue: blocking work runs outside the event loop."""

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from regard.serve.limits import QUEUED

T = TypeVar("T")


class Worker:
    """A pool of ``threads`` threads. With one thread, calls never overlap.

    The process ends without waiting for the threads (`os._exit` in `regard serve`).
    """

    def __init__(self, threads: int):
        self._pool, self._limit, self._pending = ThreadPoolExecutor(threads), threads + QUEUED, 0

    async def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` in the pool and return its result; raise `queue.Full` if too many calls are pending."""
        if self._pending >= self._limit:
            raise queue.Full
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        finally:
            self._pending -= 1
