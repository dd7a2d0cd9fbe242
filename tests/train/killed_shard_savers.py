"""A program for the tests: two ranks save, and one dies before each of its file operations; the run is whole after it.

    python killed_shard_savers.py RUN

The ranks are forked, so that torch is imported once, and exchange objects by pipes. It prints a JSON object of counts,
or dies of an assertion.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from piece_kit import loads, on_threads, save

from regard.runs import Run

OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "os.truncate"}
RANKS = 2


def fork(work: Callable[[Callable[[object], list[Any]]], None], others: list[Connection]) -> tuple[int, Connection]:
    """A process that does ``work`` with an exchange through this one."""
    here, there = Pipe()
    child = os.fork()
    if child == 0:
        for connection in (here, *others):
            connection.close()

        def exchange(value: object) -> list[Any]:
            there.send(value)
            return there.recv()

        try:
            work(exchange)
        except (EOFError, ConnectionError):  # the other rank died
            os._exit(1)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(2)
        os._exit(0)
    there.close()
    return child, here


def serve(connections: list[Connection]) -> None:
    """Give every rank what all have sent, until one of them ends."""
    try:
        while True:
            values = [connection.recv() for connection in connections]
            for connection in connections:
                connection.send(values)
    except (EOFError, OSError):
        pass
    finally:
        for connection in connections:
            connection.close()


def saved_by_two(path: Path, step: int, mortal: int, deadly: int) -> bool:
    """Save as two ranks, one of which dies before its operation number ``deadly``. Whether it died."""

    def work(rank: int, exchange: Callable[[object], list[Any]]) -> None:
        run, left = Run.open(path), deadly

        def hook(event: str, arguments: tuple) -> None:
            nonlocal left
            if event in OPERATIONS:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        if rank == mortal:
            sys.addaudithook(hook)
        save(run, step, rank, RANKS, exchange, keep=1)
        left = 0

    children, connections = [], []
    for rank in range(RANKS):
        child, connection = fork(lambda exchange, rank=rank: work(rank, exchange), connections)
        children.append(child)
        connections.append(connection)
    serve(connections)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    died = codes[mortal] == -signal.SIGKILL
    assert codes[mortal] in (0, -signal.SIGKILL), codes
    assert codes[1 - mortal] in ((0, 1) if died else (0,)), codes
    return died


def main() -> None:
    path = Path(sys.argv[1])
    torch.set_num_threads(1)
    on_threads(RANKS, lambda rank, exchange: save(Run.open(path), 1, rank, RANKS, exchange))
    counts = {"rounds": 0, "old": 0, "new": 0}
    step = 1
    for mortal in range(RANKS):
        for deadly in range(1, 1000):
            died = saved_by_two(path, step + 1, mortal, deadly)
            run = Run.open(path)
            new = max(run.steps()) == step + 1
            assert new or died
            assert loads(run, step + new), (mortal, deadly, run.damaged)  # as a reader sees it, before the sweep
            assert run.damaged == []
            with run.lock():  # what a resume does first
                names = [entry.name for entry in (path / "checkpoints").iterdir()]
            assert all(name.startswith("step-") for name in names), names
            step += new
            counts["rounds"] += 1
            counts["new" if new else "old"] += 1
            if not died:
                break
        else:
            raise AssertionError("a save never ended")
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
