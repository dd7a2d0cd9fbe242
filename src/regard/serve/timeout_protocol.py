"""uvicorn's HTTP/1.1 protocol with timeouts against slow clients.

uvicorn waits without limit for the rest of a request and for a client to read the response. `TimeoutProtocol` closes
the connection if a whole request (headers and body) does not arrive within `RECEIVE_TIMEOUT` seconds, or if the client
does not read the response within `SEND_TIMEOUT` seconds.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serve.limits import CONNECTIONS, RECEIVE_TIMEOUT, SEND_TIMEOUT


class TimeoutProtocol(H11Protocol):
    """A connection with a receive timeout and a send timeout."""

    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._update_receive_timeout()

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # invalid bytes while a request is being answered
            self.transport.abort()
        self._update_receive_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiving, self._sending = _cancel(self._receiving), _cancel(self._sending)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._sending = self.loop.call_later(SEND_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        self._sending = _cancel(self._sending)
        super().resume_writing()

    def _update_receive_timeout(self) -> None:
        """Start the timer while a request is incomplete; stop it otherwise."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._receiving = _cancel(self._receiving)
        elif self._receiving is None:
            self._receiving = self.loop.call_later(RECEIVE_TIMEOUT, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    """Cancel a timer; the result, None, replaces it."""
    if timer is not None:
        timer.cancel()
