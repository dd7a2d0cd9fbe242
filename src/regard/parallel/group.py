"""The process group of a run: the store where its ranks meet, and a watch that names a rank that is missing.

A collective operation waits for every rank, and its own timeout does not say which one it waited for. So each rank
also writes two counts into the store, from a thread: how often it has written, and how many reductions it has entered.
The first one stands still when a process is stopped or its machine is gone, the second one when its main thread hangs.
"""

import functools
import gc
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

from regard.errors import RankLost, UserError
from regard.parallel.world import World

#: Seconds that a rank waits for another one. It covers what rank 0 does alone, such as writing a checkpoint.
TIMEOUT = 600.0
TICKS = 20  # counts written per timeout
PATIENCE = 18  # ticks without a change; fewer than TICKS, so that the sentence comes before the collective's error
_groups = itertools.count()  # process groups made in this process; the number keeps their keys apart


@contextmanager
def process_group(world: World, device: torch.device, timeout: float = TIMEOUT) -> Iterator[World]:
    """A context in which the process group of ``world`` exists; one that already exists is used and kept.

    A rank that is missing for ``timeout`` seconds ends the others, with a sentence that names it.
    """
    world = world._replace(device=device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # our own kernels are launched on the current device
    if world.size == 1 or distributed.is_initialized():
        yield world.with_mesh()
        return
    prefix = f"group-{next(_groups)}"
    store = distributed.PrefixStore(prefix, meet(world.rank, world.size, timeout))
    # The watch has a connection of its own, as each one carries one request at a time.
    watch = Watch(distributed.PrefixStore(prefix, _connect(False, timeout)), world, timeout)
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        with watch, _losses_named():
            limit = timedelta(seconds=timeout)
            distributed.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=limit)
            world = world._replace(watch=watch).with_mesh()
            yield world
            world.barrier()  # no rank leaves while another one still communicates
    finally:
        gc.collect()  # sharded models refer to the group; one that outlives it may abort the interpreter's exit
        if distributed.is_initialized():
            distributed.destroy_process_group()


def agree(world: World, timeout: float, choose: Callable[[], str]) -> str:
    """What rank 0 chooses, on every rank. Needs no process group."""
    if world.size == 1:
        return choose()
    store = meet(world.rank, world.size, timeout)
    if world.rank == 0:
        chosen = ""
        try:
            chosen = choose()
        finally:  # the others end too if it fails
            store.set("chosen", chosen)
        return chosen
    with _losses_named():
        chosen = store.get("chosen").decode()
    if not chosen:
        raise UserError("rank 0 could not start the run; its own message says why")
    return chosen


@functools.cache
def meet(rank: int, size: int, timeout: float) -> distributed.Store:
    """The store of all ranks, once each of them is there; kept, since rank 0 may be the one that serves it."""
    keys = [f"arrived-{other}" for other in range(size)]
    try:
        store = _connect(rank == 0, timeout)
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        problem = "cannot listen" if rank == 0 else "was not there"
        raise RankLost(
            f"rank 0 {problem} at MASTER_ADDR and MASTER_PORT, {where}, within {timeout:g} seconds "
            f"({_first_line(error)}); start every process, with the same address and a free port"
        ) from error
    store.set(keys[rank], "")
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError as error:
        missing = [other for other, key in enumerate(keys) if not store.check([key])]
        raise RankLost(
            f"{_ranks(missing)} did not start within {timeout:g} seconds; look at the output there, or raise --timeout"
        ) from error
    return store


def _connect(serve: bool, timeout: float) -> distributed.TCPStore:
    """A connection to the store at MASTER_ADDR and MASTER_PORT, where torchrun's agent serves it, or else rank 0."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise UserError(f"WORLD_SIZE is set, but {missing[0]} is not; start with torchrun or --processes, or set it")
    serve = serve and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address, port, limit = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timedelta(seconds=timeout)
    return distributed.TCPStore(address, port, None, serve, limit, wait_for_workers=False, multi_tenant=True)


class Watch:
    """Ends this process, with a sentence that names the rank, when another one has not answered for ``timeout``.

    The process has to be ended from outside of its main thread, which waits in a collective operation. One thread
    exchanges the counts, and may itself wait for the store; the other one only compares them. It counts its own ticks
    and asks no clock, so that a process that was stopped itself does not take the others for missing.
    """

    def __init__(self, store: distributed.Store, world: World, timeout: float):
        self.entered = 0  # reductions
        self._store, self._rank, self._timeout = store, world.rank, timeout
        self._keys = [f"counts-{rank}" for rank in range(world.size)]
        self._read = [[0, 0] for _ in self._keys]  # by rank, as last read: times written, reductions entered
        self._over = threading.Event()

    def __enter__(self) -> "Watch":
        for work in (self._exchange, self._compare):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _exchange(self) -> None:
        written = 0
        while not self._over.wait(self._timeout / TICKS):
            written += 1
            try:
                self._store.set(self._keys[self._rank], f"{written} {self.entered}")
                if self._store.check(self._keys):
                    self._read = [[int(count) for count in text.split()] for text in self._store.multi_get(self._keys)]
                else:  # some rank has not written yet, and reading its counts would wait for it
                    own = [written, self.entered]
                    self._read = [own if rank == self._rank else [0, 0] for rank in range(len(self._keys))]
            except RuntimeError:  # the store is gone: its counts stand still from now on
                return

    def _compare(self) -> None:
        before = self._read
        silent = [0 for _ in self._keys]  # ticks since a rank last wrote
        idle = 0  # ticks since a rank last entered a reduction
        while not self._over.wait(self._timeout / TICKS):
            now = self._read
            silent = [0 if old[0] != new[0] else ticks + 1 for ticks, old, new in zip(silent, before, now, strict=True)]
            idle = idle + 1 if [old[1] for old in before] == [new[1] for new in now] else 0
            before = now
            if silent[self._rank] >= PATIENCE:  # what this rank wrote does not come back
                self._end("the store of the ranks, on the machine of rank 0,")
            elif missing := [rank for rank, ticks in enumerate(silent) if ticks >= PATIENCE]:
                self._end(_ranks(missing))
            elif idle >= PATIENCE and (behind := [rank for rank, new in enumerate(now) if new[1] < now[self._rank][1]]):
                self._end(_ranks(behind))

    def _end(self, who: str) -> None:
        if not self._over.is_set():
            waited = f"{self._timeout * PATIENCE / TICKS:g} seconds"
            then = f"continue with `regard resume`, or raise --timeout {self._timeout:g} if it was only slow"
            print(f"regard: {who} has not answered for {waited}; {then}", file=sys.stderr, flush=True)
            os._exit(RankLost.exit_code)


@contextmanager
def _losses_named() -> Iterator[None]:
    """A context in which an error of a connection to another rank becomes a `RankLost`."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, distributed.DistError) or "gloo/transport" in str(error)):
            raise
        raise RankLost(
            f"another rank ended or cannot be reached ({_first_line(error)}); its own output says why, and `regard "
            "resume` continues the run"
        ) from error


def _ranks(numbers: list[int]) -> str:
    """
    >>> _ranks([3]), _ranks([1, 2])
    ('rank 3', 'each of the ranks 1, 2')
    """
    shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"rank {shown}" if len(numbers) == 1 else f"each of the ranks {shown}"


def _first_line(error: Exception) -> str:
    """The first line of a message, without the place in the sources that gloo puts before it."""
    line = (str(error).splitlines() or [""])[0]
    return line.partition("] ")[2] or line if line.startswith("[") else line
