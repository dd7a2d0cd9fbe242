"""`regard serve`: a socket on the loopback address, a token, and the loop until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
import uvicorn

from regard.errors import UserError
from regard.serve.app import Server
from regard.serve.guard import Guard
from regard.serve.library import Library
from regard.serve.limits import CONNECTIONS, HEADERS, IDLE
from regard.serve.pages import page
from regard.serve.protocol import TimeoutProtocol
from regard.serve.session_cache import SessionCache

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """A socket that only this machine can reach; port 0 takes a free one."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
    except OSError as error:
        found.close()
        raise UserError(
            f"port {port} cannot be used ({error.strerror}); leave --port out, and a free one is taken"
        ) from error
    return found


def run(runs: Path, device: torch.device, port: int, ready: Callable[[str], None]) -> None:
    """Serve the folder `runs` until a signal; `ready` gets the address once there is one.

    A thread may still be in the middle of something afterwards.
    """
    bound = listen(port)
    port, token = bound.getsockname()[1], secrets.token_urlsafe(32)
    for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):  # a hostile request is no news
        logging.getLogger(name).setLevel(logging.CRITICAL)
    own = Server(SessionCache(Library(runs), device), page(), lambda: engine.should_exit)
    config = uvicorn.Config(
        Guard(own.build(), port, token),
        http=TimeoutProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=1,
        limit_concurrency=CONNECTIONS,
        h11_max_incomplete_event_size=HEADERS,
    )
    engine = _Announced(config, own, lambda: ready(f"http://{HOST}:{port}/?token={token}"))
    with suppress(KeyboardInterrupt):  # uvicorn raises again, after it has closed everything, what it caught
        engine.run(sockets=[bound])


class _Announced(uvicorn.Server):
    """Tells that it listens."""

    def __init__(self, config: uvicorn.Config, own: Server, started: Callable[[], None]):
        super().__init__(config)
        self._own, self._tell = own, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell()
        self._warming = asyncio.create_task(self._own.warm())
