"""Run `regard serve` as a process and send it raw HTTP requests."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

#: The `regard` command; SIGINT is enabled even if the parent process ignores it.
REGARD = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from regard.cli import entry; entry()",
]
PATIENCE = 300  # seconds after which the server is taken to hang


class HttpResponse(NamedTuple):
    """A response; status 0 if the server sent none."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningServer:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], address: str):
        self.process = process
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)", address)
        assert match, address
        self.port, self.token = int(match[1]), match[2]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def raw(self, data: bytes, wait: float = PATIENCE) -> HttpResponse:
        """Send bytes and read the response until it is complete or the server closes the connection."""
        with self.connect() as client:
            client.settimeout(wait)
            with suppress(OSError):  # the server may close the connection early and still have sent a response
                client.sendall(data)
            return receive(client)

    def head(self, method: str, target: str, **headers: str | None) -> bytes:
        """Return a request head with the headers of the page; None removes a header."""
        defaults: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}", "Authorization": f"token {self.token}"}
        merged = {**defaults, **{name.replace("_", "-"): value for name, value in headers.items()}}
        lines = [f"{name}: {value}" for name, value in merged.items() if value is not None]
        return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode("latin-1")

    def get(self, target: str, **headers: str | None) -> HttpResponse:
        return self.raw(self.head("GET", target, **headers))

    def post(self, target: str, content: Any, **headers: str | None) -> HttpResponse:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        defaults = {"Content_Type": "application/json", "Content_Length": str(len(body))}
        return self.raw(self.head("POST", target, **{**defaults, **headers}) + body)

    def identify(self, name: str) -> str:
        return next(run["id"] for run in self.get("/api/runs").json["runs"] if run["name"] == name)

    def interrupt(self) -> int:
        """Send SIGINT and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=PATIENCE)


def receive(client: socket.socket) -> HttpResponse:
    """Read one response."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            piece = client.recv(65536)
            if not piece:
                return HttpResponse(0, {}, data)
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = headers.get("content-length")
        while length is None or len(body) < int(length):
            piece = client.recv(65536)
            if not piece:
                break
            body += piece
    except OSError:
        return HttpResponse(0, {}, data)
    return HttpResponse(int(first.split()[1]), headers, body)


@contextmanager
def run_server(runs: Path) -> Iterator[RunningServer]:
    """Run `regard serve` in a subprocess."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    arguments = ["serve", "--runs", str(runs), "--no-browser", "--device", "cpu", "--json", "--port", "0"]
    process = subprocess.Popen(
        [*REGARD, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    listener = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)  # type: ignore[arg-type]
    listener.start()
    try:
        line = process.stdout.readline()
        assert line, errors
        yield RunningServer(process, json.loads(line)["address"])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        listener.join()
        process.stdout.close()
        process.stderr.close()
    assert not [line for line in errors if "Traceback" in line or "regard serve:" in line], "".join(errors)
