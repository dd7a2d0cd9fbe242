"""Ring attention on several ranks of one process, a thread each; and what any set of ranks computes of a case."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import torch
from strategies import Case, generator
from torch import Tensor

from regard.attention import Softmax
from regard.attention.backends.ring import Ring
from regard.attention.ring.transport import Transport, Wait
from regard.attention.slots import select

LIMIT = 5  # seconds that a rank waits for another one


class Threads(Transport):
    """The transport of one of several threads."""

    def __init__(self, rank: int, boxes: list[list[Queue[Tensor]]], meeting: threading.Barrier):
        super().__init__()
        self.rank, self.size, self.boxes, self.meeting = rank, len(boxes), boxes, meeting

    @classmethod
    def of(cls, size: int) -> list[Threads]:
        boxes: list[list[Queue[Tensor]]] = [[Queue() for _ in range(size)] for _ in range(size)]
        meeting = threading.Barrier(size, timeout=LIMIT)
        return [cls(rank, boxes, meeting) for rank in range(size)]

    def gather(self, x: Tensor) -> list[Tensor]:
        for box in self.boxes[self.rank]:
            box.put(x)
        found = [row[self.rank].get(timeout=LIMIT) for row in self.boxes]
        self.meeting.wait()
        return found

    def _exchange(self, sent: Tensor | None, to: int, received: Tensor | None, source: int) -> Wait:
        if sent is not None:
            self.boxes[self.rank][to].put(sent.clone())

        def wait() -> None:
            if received is not None:
                received.copy_(self.boxes[source][self.rank].get(timeout=LIMIT))

        return wait


def on_rank(case: Case, transport: Transport, queries: Tensor, keys: Tensor, **sizes: Any) -> dict[str, Tensor]:
    """The values of the queries at these indices, and all gradients, with the keys at these indices on this rank."""
    q, k, v = case.tensors()
    own = [x.detach()[:, :, index].requires_grad_() for x, index in ((q, queries), (k, keys), (v, keys))]
    mechanism = case.mechanism(Ring(transport, **sizes))
    assert isinstance(mechanism, Softmax)
    others = None if case.keys is None else select(case.keys, keys)
    plan = mechanism.plan(case.mask, select(case.queries, queries), others, like=own[0])
    values = mechanism(*own, plan).values
    upstream = torch.randn(*q.shape[:3], v.shape[3], generator=generator(case.seed + 1), dtype=q.dtype)
    tensors = dict(zip("qkv", own, strict=True)) | dict(mechanism.named_parameters())
    gradients = torch.autograd.grad(values, list(tensors.values()), upstream[:, :, queries], materialize_grads=True)
    return {"values": values.detach()} | {f"gradient of {n}": g for n, g in zip(tensors, gradients, strict=True)}


def together(results: list[dict[str, Tensor]], queries: list[Tensor], keys: list[Tensor]) -> dict[str, Tensor]:
    """The results of all ranks as those of one process."""
    joined = {}
    for name in results[0]:
        found = [result[name] for result in results]
        if name in ("values", "gradient of q", "gradient of k", "gradient of v"):
            order = torch.cat(keys if name[-1] in "kv" else queries).argsort()
            joined[name] = torch.cat(found, dim=2)[:, :, order]
        else:  # of a bias: every rank has a part of the sum
            joined[name] = torch.stack(found).sum(0)
    return joined


def on_threads(
    case: Case, queries: list[Tensor], keys: list[Tensor], **sizes: Any
) -> tuple[dict[str, Tensor], list[Threads]]:
    """The outcome of a case on as many ranks as there are parts, and their transports."""
    ranks = Threads.of(len(queries))
    with ThreadPoolExecutor(len(ranks)) as pool:
        started = [pool.submit(on_rank, case, *given, **sizes) for given in zip(ranks, queries, keys, strict=True)]
        results = [future.result() for future in started]
    return together(results, queries, keys), ranks
