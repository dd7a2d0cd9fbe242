"""Hostile requests to a running server, and a server beside a training: no 5xx, no secrets, flat memory."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.torture.room import TINY, Room, Tally

AWKWARD: tuple[Any, ...] = ("", "x" * 100_000, -1, 10**30, 1e308, None, True, [], {}, [[[]]] * 50, "../../etc/passwd")
AWKWARD += ("\x00", "\u202e", {"a": {"b": {}}}, [0] * 10_000, "NaN", "<script>", 0.1)
FIELDS = ("run", "id", "text", "step", "layer", "head", "heads", "layers", "token", "position", "tokens", "prompt")
FIELDS += ("temperature", "trace", "query", "key", "checkpoint", "source", "target", "k", "rows", "columns")


class Server:
    """`regard serve` as a process."""

    def __init__(self, runs: Path):
        command = [sys.executable, "-m", "regard.cli", "serve", "--runs", str(runs), "--port", "0", "--no-browser"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*command, "--device", "cpu"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)", line):
                self.port, self.token = int(found[1]), found[2]
                break

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and body; status 0 where the connection was closed, -1 after ten seconds of silence."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            given = {"Authorization": f"token {self.token}", "Content-Type": "application/json", **headers}
            connection.request(method, path, body, given)
            response = connection.getresponse()
            return response.status, response.read(1 << 20)
        except TimeoutError:
            return -1, b""
        except (OSError, http.client.HTTPException, ValueError):
            return 0, b""
        finally:
            connection.close()

    def memory(self) -> int:
        """Resident bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def serving(runs: Path) -> Iterator[Server]:
    server = Server(runs)
    try:
        yield server
    finally:
        server.process.send_signal(signal.SIGINT)
        try:
            server.process.wait(20)
        except subprocess.TimeoutExpired:
            server.process.kill()


def routes() -> list[tuple[str, str]]:
    """The server's own routes, as (method, path)."""
    source = "".join(path.read_text() for path in Path(__import__("regard.serve").serve.__file__).parent.glob("*.py"))
    paths = sorted(set(re.findall(r'"(/api/[\w/{}:.-]*)"', source)))
    return [(method, path) for path in paths for method in ("GET", "POST")]


def attack(folder: Path, count: int, seed: int) -> Tally:
    """``count`` requests to every route with awkward values."""
    chance, tally = random.Random(seed), Tally("requests", "hostile requests")
    room = Room(folder)
    room.train()
    known = routes()
    statuses: dict[str, int] = {}
    with serving(room.path / "runs") as server:
        for _ in range(count):
            method, path = chance.choice(known)
            path = re.sub(r"\{[^}]*\}", lambda _: str(chance.choice(("one", "0", "..%2f..", "%00", "x" * 3000))), path)
            content = {name: chance.choice(AWKWARD) for name in chance.sample(FIELDS, chance.randrange(6))}
            body = json.dumps(content).encode() if chance.random() < 0.8 else chance.randbytes(300)
            status, answer = server.ask(method, path, None if method == "GET" else body)
            tally.tried += 1
            statuses[f"{status // 100}xx" if status > 0 else str(status)] = (
                statuses.get(f"{status // 100}xx" if status > 0 else str(status), 0) + 1
            )
            what = f"{method} {path[:80]} {body[:100]!r}"
            if status == -1 and "event" not in path:
                tally.add("hangs", what)
            elif status >= 500 and status != 503:
                tally.add("tracebacks", f"{status}: {what}: {answer[:200]!r}")
            elif b"Traceback" in answer or b"root:x" in answer:
                tally.add("executed", f"a secret in the answer of {what}")
        if server.process.poll() is not None:
            tally.add("lost", "the server has ended")
    tally.notes |= statuses
    return tally


def soak(folder: Path, seconds: int, seed: int) -> Tally:
    """A training and a server for ``seconds``; its memory must not grow after the first quarter."""
    tally = Tally("soak", "seconds of training and serving")
    room = Room(folder)
    room.train()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REGARD_CACHE": str(room.path / "cache")}
    command = [
        sys.executable,
        "-m",
        "regard.cli",
        "train",
        *TINY,
        "--train.seconds",
        str(seconds + 20),
        "--name",
        "two",
    ]
    training = subprocess.Popen(
        command, cwd=room.path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    sizes, requests = [], 0
    with serving(room.path / "runs") as server:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for path in ("/", "/api/runs", "/page.js"):
                status, _ = server.ask("GET", path)
                requests += 1
                if status != 200:
                    tally.add("hangs" if status == -1 else "tracebacks", f"{path}: {status}")
            sizes.append(server.memory())
            time.sleep(0.05)
    training.send_signal(signal.SIGINT)
    training.wait(60)
    tally.tried = seconds
    early, late = max(sizes[: len(sizes) // 4 + 1]), max(sizes)
    tally.notes |= {"requests": requests, "MB early": early >> 20, "MB at most": late >> 20}
    if late > early * 1.1 + (20 << 20):
        tally.add("lost", f"memory grew from {early >> 20} to {late >> 20} MB")
    return tally
