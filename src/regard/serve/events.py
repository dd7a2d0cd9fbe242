"""Server-sent events: new metrics, samples, findings and states of a run while it trains.

All streams of a run share one `RunFeed`, which polls the sizes of three files and reads only new lines. A stream begins
with everything, so no record is lost between the page's first request and the stream; records carry a step or an id, so
duplicates are harmless. The `id` field of the metrics events lets a browser continue after it reconnects.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from regard.runs.disk import JsonObject, plain
from regard.serve.limits import SAMPLES
from regard.serve.records import JsonlTail, latest_findings, sample_entry
from regard.serve.run_library import RunLibrary

TRAINING_INTERVAL, IDLE_INTERVAL, HEARTBEAT = 1.0, 2.0, 10.0  # seconds between polls, and between comments
SHUTDOWN_INTERVAL = 0.2  # seconds within which a stream notices that the server stops


class RunFeed:
    """The events of one run, read once for all of its streams."""

    def __init__(self, library: RunLibrary, run: str):
        self._library, self._run, self._path = library, run, library.path(run)
        self._samples, self._findings = self._tails()
        self._new(self._samples, self._findings)  # a stream begins with these
        self._position = self._metrics_position()
        self._summary: JsonObject = {}
        self.training = False
        self.polled = time.monotonic()
        self.streams: list[list[str]] = []  # of each stream: the events that it has not sent yet

    def _tails(self) -> tuple[JsonlTail, JsonlTail]:
        return JsonlTail(self._path / "samples.jsonl"), JsonlTail(self._path / "findings.jsonl")

    def _metrics_position(self) -> tuple[int, int, int]:
        log = self._library.log(self._run)
        return log.restarts, log.records, log.last_step()

    def snapshot(self, after: int) -> list[str]:
        """Everything that is known of the run, with the metrics from the step ``after`` on."""
        events = self._metrics(after) + self._new(*self._tails())
        return [*events, format_event("state", self._read_summary())]

    def poll(self) -> list[str]:
        """Return the events since the previous poll."""
        before, self._position = self._position, self._metrics_position()
        events = []
        if self._position[0] != before[0]:  # a resumed run removes the records after its checkpoint
            events += self._metrics(-1, always=True)
        elif self._position != before:  # the row of the last step is sent again: it may have more values now
            events += self._metrics(before[2])
        events += self._new(self._samples, self._findings)
        known, summary = self._summary, self._read_summary()
        return [*events, *([format_event("state", summary)] if summary != known else [])]

    def _metrics(self, start: int, always: bool = False) -> list[str]:
        log = self._library.log(self._run)
        table = log.table(start - 1)
        return [format_event("metrics", table, max(log.last_step(), 0))] if always or table["rows"] else []

    def _new(self, samples: JsonlTail, findings: JsonlTail) -> list[str]:
        events = [format_event("sample", sample_entry(record)) for record in samples.read().records[-SAMPLES:]]
        return events + [format_event("finding", finding) for finding in latest_findings(findings.read().records)]

    def _read_summary(self) -> JsonObject:
        self._summary = self._library.summary(self._run)
        self.training = self._summary["state"] == "training"
        return self._summary


Reader = Callable[[Callable[[], list[str]]], Awaitable[list[str]]]


async def stream_events(
    feed: RunFeed, after: int | None, read: Reader, stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    """Yield the events of a run until the client disconnects or the server stops; ``read`` calls a method of the feed.

    Whichever stream first finds that a poll is due polls for all of them.
    """
    pending: list[str] = ["retry: 2000\n\n"]
    feed.streams.append(pending)
    try:
        pending += await read(lambda: feed.snapshot(-1 if after is None else after))
        sent = time.monotonic()
        while not stopping():
            now = time.monotonic()
            if now - feed.polled >= (TRAINING_INTERVAL if feed.training else IDLE_INTERVAL):
                feed.polled = now
                events = await read(feed.poll)
                for stream in feed.streams:
                    stream += events
            if now - sent >= HEARTBEAT:
                pending.append(": heartbeat\n\n")
            if pending:
                sent, chunk = now, "".join(pending)
                pending.clear()
                yield chunk
            await asyncio.sleep(SHUTDOWN_INTERVAL)
    finally:
        feed.streams[:] = [stream for stream in feed.streams if stream is not pending]


def format_event(kind: str, data: JsonObject, number: int | None = None) -> str:
    """Return one event in the wire format."""
    payload = json.dumps(plain(data, lambda _: None), allow_nan=False)
    event_id = "" if number is None else f"id: {number}\n"
    return f"{event_id}event: {kind}\ndata: {payload}\n\n"
