"""Server-sent events: new metrics, samples, findings and states of a run while it trains.

All streams of a run share one `RunFeed`: one task polls the sizes of three files, reads only new lines and wakes the
streams together, because every separate wake-up interrupts a training on the same cores. A stream begins with
everything, so no record is lost between the page's first request and the stream; records carry a step or an id, so
duplicates are harmless. The `id` field of the metrics events lets a browser continue after it reconnects.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from regard.runs.disk import JsonObject, plain
from regard.serve.limits import SAMPLES
from regard.serve.records import JsonlTail, latest_findings, sample_entry
from regard.serve.run_library import NotFoundError, RunLibrary

TRAINING_INTERVAL, IDLE_INTERVAL, HEARTBEAT = 1.0, 2.0, 10.0  # seconds between polls, and between comments
SHUTDOWN_INTERVAL = 0.2  # seconds within which a stream notices that the server stops


class EventQueue:
    """The events that one client has not been sent yet."""

    def __init__(self) -> None:
        self._pending = ["retry: 2000\n\n"]
        self._changed = asyncio.Event()
        self.ended = False

    def add(self, events: list[str], end: bool = False) -> None:
        """Append events, or end the stream after them."""
        self._pending += events
        self.ended |= end
        self._changed.set()

    async def take(self) -> str:
        """Wait for events and return all of them."""
        await self._changed.wait()
        self._changed.clear()
        chunk = "".join(self._pending)
        self._pending.clear()
        return chunk


class RunFeed:
    """The events of one run, read once for all of its streams."""

    def __init__(self, library: RunLibrary, run: str):
        self._library, self._run, self._path = library, run, library.path(run)
        self._samples, self._findings = self._tails()
        self._new(self._samples, self._findings)  # a stream begins with these
        self._position = self._metrics_position()
        self._summary = self._read_summary()  # as the streams know it
        self.opening: list[str] | None = None  # the snapshot since the last poll
        self.streams: list[EventQueue] = []
        self.polling: asyncio.Task[None] | None = None

    def _tails(self) -> tuple[JsonlTail, JsonlTail]:
        return JsonlTail(self._path / "samples.jsonl"), JsonlTail(self._path / "findings.jsonl")

    def _metrics_position(self) -> tuple[int, int, int]:
        log = self._library.log(self._run)
        return log.restarts, log.records, log.last_step()

    def snapshot(self, after: int) -> list[str]:
        """Everything that is known of the run, with the metrics from the step ``after`` on.

        It is read once for all streams that begin between two polls: the next poll sends what is new since the last.
        """
        if after == -1 and self.opening is not None:
            return self.opening
        events = self._metrics(after) + self._new(*self._tails())
        events.append(format_event("state", self._read_summary()))
        self.opening = events if after == -1 else self.opening
        return events

    def poll(self) -> list[str]:
        """Return the events since the previous poll."""
        self.opening = None
        before, self._position = self._position, self._metrics_position()
        events = []
        if self._position[0] != before[0]:  # a resumed run removes the records after its checkpoint
            events += self._metrics(-1, always=True)
        elif self._position != before:  # the row of the last step is sent again: it may have more values now
            events += self._metrics(before[2])
        events += self._new(self._samples, self._findings)
        known, self._summary = self._summary, self._read_summary()
        return [*events, *([format_event("state", self._summary)] if self._summary != known else [])]

    def _metrics(self, start: int, always: bool = False) -> list[str]:
        log = self._library.log(self._run)
        last = log.last_step()
        return [write_event("metrics", log.table(start - 1), max(last, 0))] if always or last >= start else []

    def _new(self, samples: JsonlTail, findings: JsonlTail) -> list[str]:
        events = [format_event("sample", sample_entry(record)) for record in samples.read().records[-SAMPLES:]]
        return events + [format_event("finding", finding) for finding in latest_findings(findings.read().records)]

    def _read_summary(self) -> JsonObject:
        summary = self._library.summary(self._run)
        self.training = summary["state"] == "training"
        return summary


Reader = Callable[[Callable[[], list[str]]], Awaitable[list[str]]]


async def stream_events(
    feed: RunFeed, after: int | None, read: Reader, stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    """Yield the events of a run until the client leaves or the server stops; ``read`` calls a method of the feed."""
    stream = EventQueue()
    feed.streams.append(stream)
    try:
        stream.add(await read(lambda: feed.snapshot(-1 if after is None else after)))
        if feed.polling is None or feed.polling.done():
            feed.polling = asyncio.create_task(poll_events(feed, read, stopping))
        while not stream.ended:
            if chunk := await stream.take():
                yield chunk
    finally:
        feed.streams.remove(stream)


async def poll_events(feed: RunFeed, read: Reader, stopping: Callable[[], bool]) -> None:
    """Give the events of a run to its streams until the last client has left or the server stops."""
    polled = sent = time.monotonic()
    try:
        while feed.streams and not stopping():
            now = time.monotonic()
            if now - polled >= (TRAINING_INTERVAL if feed.training else IDLE_INTERVAL):
                polled = now
                events = await read(feed.poll) or ([": heartbeat\n\n"] if now - sent >= HEARTBEAT else [])
                if events:
                    sent = now
                    for stream in feed.streams:
                        stream.add(events)
            await asyncio.sleep(SHUTDOWN_INTERVAL)
    except NotFoundError:  # the run was removed; a client that connects again gets an error
        pass
    finally:
        feed.opening = None  # nobody polls any more, so it would grow old
        for stream in feed.streams:
            stream.add([], end=True)


def format_event(kind: str, data: JsonObject) -> str:
    """Return one event in the wire format."""
    return write_event(kind, json.dumps(plain(data, lambda _: None), allow_nan=False))


def write_event(kind: str, payload: str, number: int | None = None) -> str:
    """Return one event, whose data is JSON already, in the wire format."""
    event_id = "" if number is None else f"id: {number}\n"
    return f"{event_id}event: {kind}\ndata: {payload}\n\n"
