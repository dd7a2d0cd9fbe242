"""`regard serve`: bind the loopback address, generate a token, and serve until Ctrl-C."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
import uvicorn

from regard.errors import UserError
from regard.serve.app import PageServer
from regard.serve.assets import load_assets
from regard.serve.guard import Guard
from regard.serve.limits import CONNECTIONS, HEADERS, KEEP_ALIVE
from regard.serve.run_library import RunLibrary
from regard.serve.session_cache import SessionCache
from regard.serve.timeout_protocol import TimeoutProtocol

HOST = "127.0.0.1"


def bind(port: int) -> socket.socket:
    """Return a listening socket on the loopback address; port 0 chooses a free port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        reason = f"port {port} cannot be used ({error.strerror})"
        raise UserError(f"{reason}; leave --port out to use a free port") from error
    return listener


def run(runs: Path, device: torch.device, port: int, ready: Callable[[str], None]) -> None:
    """Serve the folder ``runs`` until a signal; ``ready`` receives the address when the server accepts connections.

    Worker threads may still be running when this returns.
    """
    listener = bind(port)
    port, token = listener.getsockname()[1], secrets.token_urlsafe(32)
    for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):  # invalid requests are not worth a log line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    page = PageServer(
        SessionCache(RunLibrary(runs), device),
        load_assets(),
        on_start=lambda: ready(f"http://{HOST}:{port}/?token={token}"),
        stopping=lambda: server.should_exit,
    )
    config = uvicorn.Config(
        Guard(page.build(), port, token),
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
