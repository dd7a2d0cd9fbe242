"""A real `regard serve`, and requests to it byte by byte."""

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

#: `regard`, also where Ctrl-C was turned off for whatever started the tests.
REGARD = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from regard.cli import entry; entry()",
]


class Answer(NamedTuple):
    """What came back; status 0: nothing did."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[str], address: str):
        self.process = process
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)", address)
        assert found, address
        self.port, self.token = int(found[1]), found[2]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def raw(self, data: bytes, wait: float = 60) -> Answer:
        """Send bytes, and read until the server closes or a whole answer is there."""
        with self.connect() as client:
            client.settimeout(wait)
            with suppress(OSError):  # cut off while sending: what it said may still be read
                client.sendall(data)
            return receive(client)

    def head(self, method: str, target: str, **headers: str | None) -> bytes:
        """A request's head, with what the page itself would send unless changed; None leaves a header out."""
        usual: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}", "Authorization": f"token {self.token}"}
        sent = {**usual, **{name.replace("_", "-"): value for name, value in headers.items()}}
        lines = [f"{name}: {value}" for name, value in sent.items() if value is not None]
        return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode("latin-1")

    def get(self, target: str, **headers: str | None) -> Answer:
        return self.raw(self.head("GET", target, **headers))

    def post(self, target: str, told: Any, **headers: str | None) -> Answer:
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        usual = {"Content_Type": "application/json", "Content_Length": str(len(body))}
        return self.raw(self.head("POST", target, **{**usual, **headers}) + body)

    def identify(self, name: str) -> str:
        return next(run["id"] for run in self.get("/api/runs").json["runs"] if run["name"] == name)

    def interrupt(self) -> int:
        """Ctrl-C, and the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=60)


def receive(client: socket.socket) -> Answer:
    """One answer."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            piece = client.recv(65536)
            if not piece:
                return Answer(0, {}, data)
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
        return Answer(0, {}, data)
    return Answer(int(first.split()[1]), headers, body)


@contextmanager
def serving(runs: Path) -> Iterator[Served]:
    """`regard serve` as a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    words = ["serve", "--runs", str(runs), "--no-browser", "--device", "cpu", "--json"]
    process = subprocess.Popen(
        [*REGARD, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    listener = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)  # type: ignore[arg-type]
    listener.start()
    try:
        line = process.stdout.readline()
        assert line, said
        yield Served(process, json.loads(line)["address"])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        listener.join()
        process.stdout.close()
        process.stderr.close()
    assert not [line for line in said if "Traceback" in line or "regard serve:" in line], "".join(said)
