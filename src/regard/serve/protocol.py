"""HTTP/1.1 by uvicorn, for clients that may be slow on purpose.

uvicorn waits for the rest of a request, and for a client to read its answer, as long as the client likes. Here a whole
request, headers and body, must have come within `ARRIVE` seconds of its first byte (or of the connection), and what was
sent must be taken within `TAKE`; who does not is cut off, so that no number of idle sockets can fill the server.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serve.limits import ARRIVE, CONNECTIONS, TAKE


class TimeoutProtocol(H11Protocol):
    """A connection with two clocks: one for what comes, one for what goes."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self._coming: asyncio.TimerHandle | None = None
        self._going: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
            return
        self._expect()

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # nonsense in the middle of a request that is being answered
            self.transport.abort()
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._coming, self._going):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._going = self.loop.call_later(TAKE, self._cut)

    def resume_writing(self) -> None:
        if self._going is not None:
            self._going.cancel()
            self._going = None
        super().resume_writing()

    def _expect(self) -> None:
        """Start the clock where a request is unfinished, stop it where none is."""
        unfinished = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if unfinished and self._coming is None:
            self._coming = self.loop.call_later(ARRIVE, self._cut)
        elif not unfinished and self._coming is not None:
            self._coming.cancel()
            self._coming = None

    def _cut(self) -> None:
        self.transport.abort()
