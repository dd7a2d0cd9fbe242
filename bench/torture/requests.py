"""Hostile requests to a running server, and a server beside a training: no 5xx, no secrets, flat memory."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import regard.serve
from bench.torture.room import TINY, Room, Tally

sys.path.append(str(Path(__file__).parents[2] / "tests" / "serve"))
from serve_kit import run_server  # type: ignore[import-not-found] (of the tests)

AWKWARD: tuple[Any, ...] = ("", "x" * 100_000, -1, 10**30, 1e308, None, True, [], {}, [[[]]] * 50, "../../etc/passwd")
AWKWARD += ("\x00", "\u202e", {"a": {"b": {}}}, [0] * 10_000, "NaN", "<script>", 0.1)
FIELDS = ("run", "id", "text", "step", "layer", "head", "heads", "layers", "token", "position", "tokens", "prompt")
FIELDS += ("temperature", "trace", "query", "key", "checkpoint", "source", "target", "k", "rows", "columns")


def ask(server: Any, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body; status 0 where the connection was closed, -1 after ten seconds of silence."""
    head = server.head(method, path, Content_Type="application/json", Content_Length=str(len(body)))
    began = time.monotonic()
    response = server.raw(head + body, wait=10)
    silent = response.status == 0 and time.monotonic() - began > 9
    return (-1 if silent else response.status), response.body


def resident(server: Any) -> int:
    """Bytes of memory of the server."""
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def routes() -> list[tuple[str, str]]:
    """The server's own routes, as (method, path)."""
    source = "".join(path.read_text() for path in Path(regard.serve.__file__).parent.glob("*.py"))
    paths = sorted(set(re.findall(r'"(/api/[\w/{}:.-]*)"', source)))
    return [(method, path) for path in paths for method in ("GET", "POST")]


def attack(folder: Path, count: int, seed: int) -> Tally:
    """``count`` requests to every route with awkward values."""
    chance, tally = random.Random(seed), Tally("requests", "hostile requests")
    room = Room(folder)
    room.train()
    known = routes()
    statuses: dict[str, int] = {}
    with run_server(room.path / "runs") as server:
        for _ in range(count):
            method, path = chance.choice(known)
            path = re.sub(r"\{[^}]*\}", lambda _: str(chance.choice(("one", "0", "..%2f..", "%00", "x" * 3000))), path)
            content = {name: chance.choice(AWKWARD) for name in chance.sample(FIELDS, chance.randrange(6))}
            body = json.dumps(content).encode() if chance.random() < 0.8 else chance.randbytes(300)
            status, answer = ask(server, method, path, b"" if method == "GET" else body)
            tally.tried += 1
            group = f"{status // 100}xx" if status > 0 else str(status)
            statuses[group] = statuses.get(group, 0) + 1
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
    with run_server(room.path / "runs") as server:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for path in ("/", "/api/runs", "/page.js"):
                status, _ = ask(server, "GET", path)
                requests += 1
                if status != 200:
                    tally.add("hangs" if status == -1 else "tracebacks", f"{path}: {status}")
            sizes.append(resident(server))
            time.sleep(0.05)
    training.send_signal(signal.SIGINT)
    training.wait(60)
    tally.tried = seconds
    early, late = max(sizes[: len(sizes) // 4 + 1]), max(sizes)
    tally.notes |= {"requests": requests, "MB early": early >> 20, "MB at most": late >> 20}
    if late > early * 1.1 + (20 << 20):
        tally.add("lost", f"memory grew from {early >> 20} to {late >> 20} MB")
    return tally
