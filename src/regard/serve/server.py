"""`regard serve`: bind the loopback address, generate a token, and serve until Ctrl-C with timeouts."""

import asyncio
import logging
import secrets
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import h11
import torch
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.errors import UserError
from regard.serve.app import PageServer
from regard.serve.guard import Guard
from regard.serve.limits import CONNECTIONS, HEADERS, KEEP_ALIVE, RECEIVE_TIMEOUT, SEND_TIMEOUT
from regard.serve.run_library import RunLibrary
from regard.serve.session_cache import SessionCache

HOST, PORT = "127.0.0.1", 8765


class TimeoutProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with timeouts against slow clients.

    uvicorn waits without limit for the rest of a request and for a client to read the response. This closes the
    connection if a whole request (headers and body) does not arrive within `RECEIVE_TIMEOUT` seconds, or if the client
    does not read the response within `SEND_TIMEOUT` seconds.
    """

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


def bind(port: int | None) -> socket.socket:
    """Return a listening socket on the loopback address; None takes the default port or the next free one, 0 any.

    The address stays the same from one start to the next, so that an SSH tunnel keeps working.
    """
    if port is None:
        for candidate in range(PORT, PORT + 20):
            with suppress(OSError):
                return _listen(candidate)
        port = 0
    try:
        return _listen(port)
    except OSError as error:
        reason = f"port {port} cannot be used ({error.strerror})"
        raise UserError(f"{reason}; leave --port out to use a free port") from error


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":  # there it would share a port with another server instead of refusing it
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def run(runs: Path, device: torch.device, port: int | None, ready: Callable[[str], None]) -> None:
    """Serve the folder ``runs`` until a signal; ``ready`` receives the address when the server accepts connections.

    Worker threads may still be running when this returns.
    """
    # A training may run on the same cores: threads that wait for each other would slow down both.
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    listener = bind(port)
    bound, token = listener.getsockname()[1], secrets.token_urlsafe(32)
    for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):  # invalid requests are not worth a log line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    page = PageServer(
        SessionCache(RunLibrary(runs), device),
        on_start=lambda: ready(f"http://{HOST}:{bound}/?token={token}"),
        stopping=lambda: server.should_exit,
    )
    config = uvicorn.Config(
        Guard(page.build(), bound, token),
        http=TimeoutProtocol,
        ws="none",
        lifespan="on",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=1,
        limit_concurrency=CONNECTIONS,
        h11_max_incomplete_event_size=HEADERS,
    )
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after shutdown
        server.run(sockets=[listener])
