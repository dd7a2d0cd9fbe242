"""Server-sent events: new metrics, samples, findings and states of a run while it trains.

A stream polls the sizes of three files and reads only new lines. The first poll sends everything, so no record is lost
between the page's first request and the stream; records carry a step or an id, so duplicates are harmless. The `id`
field of the metrics events lets a browser continue after it reconnects.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from regard.runs.disk import JsonObject, plain
from regard.serve.limits import SAMPLES
from regard.serve.records import JsonlTail, latest_findings, metrics_table, sample_entry
from regard.serve.run_library import RunLibrary

TRAINING_INTERVAL, IDLE_INTERVAL, HEARTBEAT = 0.5, 2.0, 10.0  # seconds between polls, and between comments
SHUTDOWN_INTERVAL = 0.2  # seconds within which a stream notices that the server stops


class RunEvents:
    """The read positions of one stream in the files of a run."""

    def __init__(self, library: RunLibrary, run: str, after: int | None):
        path = library.path(run)
        self._library, self._run = library, run
        self._after = -1 if after is None else after
        self._metrics = JsonlTail(path / "metrics.jsonl")
        self._samples, self._findings = JsonlTail(path / "samples.jsonl"), JsonlTail(path / "findings.jsonl")
        self._last: list[JsonObject] = []  # the records of the newest step
        self._summary: JsonObject = {}
        self.training = False

    def poll(self) -> list[str]:
        """Return the events since the previous poll."""
        events = []
        records, restarted = self._metrics.read()
        if restarted:  # a resumed run removes the records after its checkpoint
            self._after, self._last = -1, []
        records = [record for record in records if record["step"] >= self._after]
        if records:
            # A step may have several records, some of them sent before: its row is sent complete.
            records = [*(record for record in self._last if record["step"] == records[0]["step"]), *records]
            self._last = [record for record in records if record["step"] == records[-1]["step"]]
        if records or restarted:
            events.append(format_event("metrics", metrics_table(records), self._last[0]["step"] if records else None))
        events += [format_event("sample", sample_entry(record)) for record in self._samples.read().records[-SAMPLES:]]
        findings = latest_findings(self._findings.read().records)
        events += [format_event("finding", finding) for finding in findings]
        summary = self._library.summary(self._run)
        self.training = summary["state"] == "training"
        if summary != self._summary:
            self._summary = summary
            events.append(format_event("state", summary))
        return events


async def stream_events(
    events: RunEvents, poll: Callable[[], Awaitable[list[str]]], stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    """Yield the events of a run until the client disconnects or the server stops; ``poll`` calls their `poll`."""
    yield "retry: 2000\n\n"
    sent = polled = 0.0
    while not stopping():
        now = time.monotonic()
        if now - polled >= (TRAINING_INTERVAL if events.training else IDLE_INTERVAL):
            polled = now
            for event in await poll():
                sent = now
                yield event
        if now - sent >= HEARTBEAT:
            sent = now
            yield ": heartbeat\n\n"
        await asyncio.sleep(SHUTDOWN_INTERVAL)


def format_event(kind: str, data: JsonObject, number: int | None = None) -> str:
    """Return one event in the wire format."""
    payload = json.dumps(plain(data, lambda _: None), allow_nan=False)
    event_id = "" if number is None else f"id: {number}\n"
    return f"{event_id}event: {kind}\ndata: {payload}\n\n"
