"""`regard serve` under load: how long 32 clients wait for answers, and by how much a training is slowed down.

    python -m bench.serve_load [--clients 32] [--seconds 20] [--rounds 3] [--recipe shakespeare]

A training uses all cores: of a very small model, whose many short steps are each logged and sent to every stream, or of
a recipe as it is. Each round measures its steps per second alone, then beside the server
with its clients, so that a slow drift of the machine cancels out. A client is a page on that run: it keeps an event
stream open (as many as the server allows do) and sends a request per second on another connection, which it keeps open
too, as a browser does: the list of runs, the run, its metrics, a mask, a step of sampling. Latency is counted from the
moment when a request is due, so that a stalled server is not measured too kindly. Prints p50, p99, the ratio of the
speeds, and the cores used by the server and by the clients, which share the cores with both, as JSON.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from regard.serve.limits import STREAMS

SIZES = "--model.layers 2 --model.width 64 --model.heads 2 --model.context 64 --data.batch 8 --data.path text.txt"
PLAIN = "--train.evaluate_every none --train.device cpu --train.log_every 1"
SMALL = f"train shakespeare-small {SIZES} {PLAIN} --name small --train.steps 4"
LONG = "--name busy --train.steps 1000000 --train.save_every 1000"
BUSY = f"train shakespeare-small {SIZES} {PLAIN} {LONG}"
RECIPE = f"train {{}} {PLAIN} {LONG}"
WORDS = ("to", "be", "or", "not", "that", "is", "the", "question", "whether", "tis", "nobler", "in", "mind")


def regard(folder: Path, command: str, **options: object) -> subprocess.Popen[str]:
    """Start a command in a folder."""
    environment = {**os.environ, "REGARD_CACHE": str(folder / "cache")}
    words = [sys.executable, "-m", "regard.cli", *command.split()]
    return subprocess.Popen(words, cwd=folder, env=environment, text=True, **options)  # type: ignore[call-overload] (options are passed on)


def last_step(folder: Path) -> int:
    """The last step that the training has logged."""
    with suppress(OSError, ValueError, IndexError):
        tail = (folder / "runs" / "busy" / "metrics.jsonl").read_bytes()[-4096:].split(b"\n")
        return json.loads(tail[-2])["step"]
    return 0


def cpu_seconds(process: int) -> float:
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Clients:
    """Clients of a server, which record how long each answer takes."""

    def __init__(self, address: str, count: int):
        parts = urlsplit(address)
        self.port, self.token, self.count = parts.port, parse_qs(parts.query)["token"][0], count
        self.waits: list[float] = []
        self.statuses: dict[int, int] = {}
        self.stopped = False
        self.connections: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def send(self, number: int, method: str, target: str, body: object = None) -> tuple[int, bytes]:
        """One request on the connection of client ``number``."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: token {self.token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n" if data else ""
        if number not in self.connections:
            self.connections[number] = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.connections[number]
        writer.write(head.encode() + b"\r\n" + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        content = await reader.readexactly(int(answer.partition(b"content-length:")[2].split()[0]))
        if b"connection: close" in answer:  # after an error
            writer.close()
            del self.connections[number]
        return int(answer.split(b" ", 2)[1]), content

    async def listen(self, run: str) -> None:
        """Keep an event stream open."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"GET /api/runs/{run}/events HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        writer.write(f"{head}Authorization: token {self.token}\r\n\r\n".encode())
        try:
            while not self.stopped and await asyncio.wait_for(reader.read(65536), 30):
                pass
        finally:
            writer.close()

    def kinds(self, runs: dict[str, str]) -> list[tuple[str, str, object]]:
        """The requests of a page."""
        busy = f"/api/runs/{runs['busy']}"
        mask = {"expression": "causal & window(8)", "length": 64}
        step = {"run": runs["small"], "text": "to be", "count": 4}
        kinds: list[tuple[str, str, object]] = [
            (("GET", path, None)) for path in ("/api/runs", busy, f"{busy}/metrics")
        ]
        return [*kinds, ("POST", "/api/masks", mask), ("POST", "/api/step", step)]

    async def click(self, number: int, runs: dict[str, str]) -> None:
        """Send a request per second."""
        draw, kinds = random.Random(number), self.kinds(runs)
        due = time.perf_counter() + draw.random()
        while not self.stopped:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            status, _ = await self.send(number, *draw.choice(kinds))
            self.waits.append(time.perf_counter() - due)
            self.statuses[status] = self.statuses.get(status, 0) + 1
            due += 1.0

    async def run(self, seconds: float) -> None:
        """Run all clients; the first seconds, in which the server loads what it caches, do not count."""
        listed = json.loads((await self.send(0, "GET", "/api/runs"))[1])["runs"]
        runs = {run["name"]: run["id"] for run in listed}
        for kind in self.kinds(runs):
            await self.send(0, *kind)
        tasks = [self.click(number, runs) for number in range(self.count)]
        tasks += [self.listen(runs["busy"]) for _ in range(min(self.count, STREAMS))]
        running = [asyncio.create_task(task) for task in tasks]
        await asyncio.sleep(seconds)
        self.stopped = True
        await asyncio.wait(running, timeout=30)


def measure(folder: Path, clients: int, seconds: float, rounds: int) -> dict[str, object]:
    """Alternate between training alone and training beside the server."""
    alone, beside, waits, statuses, used = [], [], [], {}, {"server": 0.0, "clients": 0.0}
    for _ in range(rounds):
        before, began = last_step(folder), time.perf_counter()
        time.sleep(seconds)
        alone.append((last_step(folder) - before) / (time.perf_counter() - began))
        server = regard(folder, "serve --no-browser --port 0 --device cpu --json", stdout=subprocess.PIPE)
        assert server.stdout is not None
        try:
            address = json.loads(server.stdout.readline())["address"]
            asked = Clients(address, clients)
            processes = {"server": server.pid, "clients": os.getpid()}
            cpu = {name: cpu_seconds(process) for name, process in processes.items()}
            before, began = last_step(folder), time.perf_counter()
            asyncio.run(asked.run(seconds))
            took = time.perf_counter() - began
            beside.append((last_step(folder) - before) / took)
            for name, process in processes.items():
                used[name] += (cpu_seconds(process) - cpu[name]) / took / rounds
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()
        waits += asked.waits
        statuses |= {status: statuses.get(status, 0) + count for status, count in asked.statuses.items()}
    waits.sort()
    return {
        "clients": clients,
        "requests": len(waits),
        "statuses": statuses,
        "p50_ms": round(1000 * waits[len(waits) // 2], 1),
        "p99_ms": round(1000 * waits[int(0.99 * len(waits))], 1),
        "steps_per_second_alone": [round(speed, 2) for speed in alone],
        "steps_per_second_beside": [round(speed, 2) for speed in beside],
        "speed_ratio": round(sum(beside) / sum(alone), 4),
        "cores_used": {name: round(cores, 3) for name, cores in used.items()},
    }


def main() -> None:
    """Train, serve and ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recipe", help="the training beside the server; default: a very small model")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the training is stopped too
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = random.Random(1).choices(WORDS, k=200_000)
        (folder / "text.txt").write_text(" ".join(words), encoding="utf-8")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        assert regard(folder, SMALL, **quiet).wait() == 0
        training = regard(folder, RECIPE.format(given.recipe) if given.recipe else BUSY, **quiet)
        try:
            while last_step(folder) < 20:
                assert training.poll() is None, "the training has ended"
                time.sleep(0.5)
            print(json.dumps(measure(folder, given.clients, given.seconds, given.rounds), indent=1))
        finally:
            training.kill()
            training.wait()


if __name__ == "__main__":
    main()
