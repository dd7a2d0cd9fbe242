"""Server-sent events: what a run's trainer adds to its folder, as it comes.

A stream looks at three files' sizes twice a second while the run trains and every other second when it does not, and
reads only what is new. The first look tells everything there is, so that nothing falls between a page's reading of the
run and its stream; rows, samples and findings are told by step or id, and hearing one twice does no harm. An `id` with
the rows lets a browser that lost its connection go on where it was.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from regard.runs.disk import plain
from regard.serve.library import Library, findings, sample, table
from regard.serve.limits import SAMPLES
from regard.serve.tail import Tail
from regard.serve.workers import Worker

LIVE, STILL, QUIET = 0.5, 2.0, 10.0  # seconds between looks, and until a comment keeps the connection open
TICK = 0.2  # seconds within which a stream notices that the server stops


class Feed:
    """One stream's place in a run's files."""

    def __init__(self, library: Library, run: str, after: int | None):
        path: Path = library.path(run)
        self._library, self._run = library, run
        self._after = -1 if after is None else after
        self._metrics = Tail(path / "metrics.jsonl")
        self._samples, self._findings = Tail(path / "samples.jsonl"), Tail(path / "findings.jsonl")
        self._last: list[dict[str, Any]] = []  # the records of the newest step
        self._state: dict[str, Any] = {}
        self.training = False

    def news(self) -> list[str]:
        """The events since the last look."""
        told = []
        records, restarted = self._metrics.news()
        if restarted:  # a resumed run cut what was past its checkpoint
            self._after, self._last = -1, []
        records = [record for record in records if record["step"] >= self._after]
        if records:
            # A step may be told in several records, of which some came before: its row is told whole.
            records = [*(record for record in self._last if record["step"] == records[0]["step"]), *records]
            self._last = [record for record in records if record["step"] == records[-1]["step"]]
        if records or restarted:
            told.append(event("metrics", table(records), self._last[0]["step"] if records else None))
        told += [event("sample", sample(record)) for record in self._samples.news().records[-SAMPLES:]]
        told += [event("finding", finding) for finding in findings(self._findings.news().records)]
        state = self._library.state(self._run)
        self.training = state["state"] == "training"
        if state != self._state:
            self._state = state
            told.append(event("state", state))
        return told


async def stream(feed: Feed, lane: Worker, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """A feed until the client goes or the server stops."""
    yield "retry: 2000\n\n"
    spoken = looked = 0.0
    while not stopping():
        now = time.monotonic()
        if now - looked >= (LIVE if feed.training else STILL):
            looked = now
            for one in await lane.do(feed.news):
                spoken = now
                yield one
        if now - spoken >= QUIET:
            spoken = now
            yield ": still here\n\n"
        await asyncio.sleep(TICK)


def event(kind: str, data: dict[str, Any], number: int | None = None) -> str:
    """One event on the wire."""
    told = json.dumps(plain(data, lambda _: None), allow_nan=False)
    name = f"id: {number}\n" if number is not None else ""
    return f"{name}event: {kind}\ndata: {told}\n\n"
