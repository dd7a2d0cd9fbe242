"""A small model as several ranks hold it, without a process group: some tensors cut, others whole on every rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.parallel.exchange import Exchange
from regard.parallel.pieces import Cut
from regard.runs import Run
from regard.runs.shards import MODEL, OPTIMIZER, ShardMap
from regard.train.shards import assign, listed, own_pieces, write_shards

WIDTH = 12
SHARED = {MODEL: {"head": "embed"}, OPTIMIZER: {}}


def whole(seed: int) -> dict[str, dict[str, Tensor]]:
    """The tensors of the whole model, and of its optimizer; "head" is tied to "embed"."""
    generator = torch.Generator().manual_seed(seed)  # ranks that are threads share the default one
    shapes = {
        "embed": (10, WIDTH),
        "qkv": (3 * WIDTH, 5),
        "down": (5, WIDTH),
        "norm": (7,),
        "scale": (),
        "empty": (0, 3),
    }
    model = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    model["down"] = model["down"].double()
    moments = {
        f"{name}/{key}": torch.randn(value.shape, generator=generator) for name, value in model.items() for key in "mv"
    }
    return {MODEL: model, OPTIMIZER: {**moments, "qkv/step": torch.tensor(float(seed))}}


def cuts(rank: int, ranks: int) -> dict[str, Cut]:
    """Three stacked matrices, a cut along the columns, and one that two ranks have the same half of."""
    each = WIDTH // ranks
    rows = tuple((part * WIDTH + rank * each, part * WIDTH + (rank + 1) * each) for part in range(3))
    half = rank * 2 // ranks
    return {
        "qkv": Cut((3 * WIDTH, 5), 0, rows, "tensor"),
        "down": Cut((5, WIDTH), 1, ((rank * each, (rank + 1) * each),), "tensor"),
        "embed": Cut((10, WIDTH), 0, ((half * 5, half * 5 + 5) if ranks > 1 else (0, 10),), "expert"),
    }


def held(seed: int, rank: int, ranks: int) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, Cut]]]:
    """What one rank holds, and how it is cut."""
    own = cuts(rank, ranks)
    moments = {f"{name}/{key}": cut for name, cut in own.items() for key in ("m", "v")}
    every = {MODEL: own, OPTIMIZER: moments}
    tensors = {
        kind: {name: every[kind][name].of(value) if name in every[kind] else value for name, value in named.items()}
        for kind, named in whole(seed).items()
    }
    return tensors, every


def save(run: Run, step: int, rank: int, ranks: int, exchange: Exchange, keep: int = 2) -> ShardMap:
    """Save as one of the ranks."""
    tensors, cut = held(step, rank, ranks)
    split = assign(exchange(listed(tensors, cut)), SHARED)
    write_shards(run, step, own_pieces(split, rank, tensors, cut), exchange, {"position": step}, keep)
    return split


def on_threads(ranks: int, work: Callable[[int, Exchange], Any]) -> list[Any]:
    """What ``work`` returns or raises on each of several ranks, which are threads."""
    barrier = threading.Barrier(ranks, timeout=60)
    given: list[Any] = [None] * ranks
    results: list[Any] = [None] * ranks

    def exchange_of(rank: int) -> Exchange:
        def exchange(value: Any) -> list[Any]:
            given[rank] = value
            barrier.wait()
            found = list(given)
            barrier.wait()
            return found

        return exchange

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, exchange_of(rank))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def loads(run: Run, step: int) -> bool:
    """Whether the newest checkpoint is that of ``step``, to the bit."""
    found = run.latest()
    if found is None or found.step != step or found.state != {"position": step}:
        return False
    wanted = whole(step)
    wanted[MODEL]["head"] = wanted[MODEL]["embed"]
    pairs = ((found.model(), wanted[MODEL]), (found.optimizer(), wanted[OPTIMIZER]))
    return all(a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a) for a, b in pairs)
