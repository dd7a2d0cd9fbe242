"""The ring backend: exact attention over keys and values that are spread over several ranks (Liu et al. 2023).

Every rank holds some tokens of each row. Its queries visit the keys of one rank after the other; the partial softmaxes
are merged by their log-sum-exp, and the backward pass computes the scores again (tiled.py). While a block is computed,
the next one is on its way; gradients of keys and values travel back to the rank that has them.

Liu et al. hand blocks on from neighbor to neighbor. Here, in step t, rank r reads the keys of rank r - t from their
owner: as many messages in the full ring, but none for a rank that only passes a block on. So what is sent is exactly
what the mask lets the other rank see (ring/route.py): of a window the last keys of a neighbor, of packed documents
those that continue on another rank.

With one rank nothing is sent: the scores of a long row are computed block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from regard.attention.backends.sdpa import even_widths, not_plain_softmax
from regard.attention.backends.tiled import (
    FusedKernel,
    Kernel,
    Mixed,
    TiledWork,
    draw_seed,
    kernel_for,
    positive_scale,
    without_tensors,
    zeros,
)
from regard.attention.call import Backend, Call, Out, Plan, SavedTensors, applying, in_one_type
from regard.attention.ring.flash import FlashKernel, flash_runs
from regard.attention.ring.route import RingRoute, RingStep, find_route
from regard.attention.ring.transport import Transport, Wait
from regard.attention.tiling.quarters import TileSizes

BLOCK = 2**16  # tokens of the largest tile of a kernel that holds no scores
DENSE = {"cpu": 512, "cuda": 1024}  # of one that does
SMALLEST = {"cpu": 128, "cuda": 512}  # below, starting a kernel takes longer than what it skips would


class Ring(Backend):
    """Softmax attention of this rank's queries to the keys of every rank, for any mask, slots and bias."""

    name = "ring"

    def __init__(self, transport: Transport | None = None, block: int = BLOCK, smallest: int | None = None):
        """``block`` and ``smallest``: tokens of the largest and the smallest tiles (default: by the device)."""
        self.transport = Transport() if transport is None else transport
        self.block, self.smallest = block, smallest

    def refuses(self, call: Call) -> list[str]:
        traced = {"torch.compile cannot trace it; set compile to false": torch.compiler.is_compiling()}
        return not_plain_softmax(call, takes_bias=True) + applying(traced)

    def prepare(self, plan: Plan, device: torch.device) -> RingRoute:
        smallest = self.smallest or SMALLEST.get(device.type, SMALLEST["cuda"])
        dense = min(self.block, DENSE.get(device.type, DENSE["cuda"]))
        sizes = {fused: TileSizes(size, smallest) for fused, size in ((True, self.block), (False, dense))}
        return find_route(plan, device, self.transport, sizes)

    def run(self, call: Call) -> Out:
        q, k, v, width = even_widths(*in_one_type(call.q, call.k, call.v))
        kernel: Kernel
        if flash_runs(call, q):
            call, q = positive_scale(call, q)
            kernel = FlashKernel(without_tensors(call))
        else:
            kernel, q = kernel_for(call, q)
        with torch.autocast(q.device.type, enabled=False):
            values = Passed.apply(RingWork(kernel, call.plan.prepared, draw_seed(call)), q, k, v, *kernel.learned)
        return Out(values[..., :width] if width != values.shape[-1] else values)


class Visitors(NamedTuple):
    """The keys and values that arrive in a step, and the work on them; None: no key is visible."""

    work: TiledWork
    k: Tensor
    v: Tensor


class RingWork(NamedTuple):
    """The arguments of ``Passed`` that are no tensors."""

    kernel: Kernel
    route: RingRoute
    seed: int

    def arriving(self, k: Tensor, v: Tensor) -> Iterator[tuple[RingStep, Visitors | None]]:
        """Each step with what arrives in it; the next step's is on its way meanwhile."""
        first, *others = self.route.steps
        ahead = self._start(others[0], k, v) if others else None
        yield first, self._visitors(first, k, v)
        for step, following in zip_longest(others, others[1:]):
            assert ahead is not None
            wait, received = ahead
            wait()
            ahead = None if following is None else self._start(following, k, v)
            yield step, None if received is None else self._visitors(step, *_unpack(received, k, v))

    def _start(self, step: RingStep, k: Tensor, v: Tensor) -> tuple[Wait, Tensor | None]:
        """Send the keys and values that ``target`` needs and receive those of ``source``."""
        sent = None if step.columns is None else _pack(*(x.index_select(2, step.columns) for x in (k, v)))
        received = None if step.visit is None else _room(step.visit.plan.keys.length, k, v)
        return self.route.transport.exchange(sent, step.target, received, step.source), received

    def send_home(
        self, step: RingStep, gradients: list[Tensor] | None, k: Tensor, v: Tensor
    ) -> tuple[Wait, Tensor | None]:
        """Send gradients to the rank whose keys they are of, and receive those of this rank's keys."""
        sent = None if gradients is None else _pack(*(x.to(k.dtype) for x in gradients))
        received = None if step.columns is None else _room(len(step.columns), k, v)
        return self.route.transport.exchange(sent, step.source, received, step.target), received

    def _visitors(self, step: RingStep, k: Tensor, v: Tensor) -> Visitors | None:
        if step.visit is None:
            return None
        kernel = self.kernel._replace(call=self.kernel.call._replace(plan=step.visit.plan))
        fused = isinstance(kernel, FlashKernel) or (isinstance(kernel, FusedKernel) and kernel.call.bias is None)
        return Visitors(TiledWork(kernel, step.visit.tiles(fused), self.seed), k, v)


def _pack(k: Tensor, v: Tensor) -> Tensor:
    """Keys and values in one message."""
    return torch.cat((k.flatten(), v.flatten()))


def _room(count: int, k: Tensor, v: Tensor) -> Tensor:
    """Memory for a message with ``count`` keys and values like these."""
    return k.new_empty(count * sum(x.shape[0] * x.shape[1] * x.shape[3] for x in (k, v)))


def _unpack(message: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    parts = message.split([len(message) * x.shape[3] // (k.shape[3] + v.shape[3]) for x in (k, v)])
    return tuple(part.view(*x.shape[:2], -1, x.shape[3]) for part, x in zip(parts, (k, v), strict=True))


class RingContext(SavedTensors):
    work: RingWork


class Passed(Function):
    @staticmethod
    def forward(ctx: RingContext, work: RingWork, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        mixed = Mixed.empty(q, v)
        for _, visitors in work.arriving(k, v):
            if visitors is not None:
                visitors.work.add_values(q, visitors.k, visitors.v, mixed)
        mixed = mixed.finished(q.dtype)
        ctx.work = work
        ctx.save_for_backward(q, k, v, *mixed)
        return mixed.out

    @staticmethod
    @once_differentiable
    def backward(ctx: RingContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        work = ctx.work
        q, k, v, *rest = ctx.saved_tensors
        mixed, given = Mixed(*rest), (q, k, v, *work.kernel.learned)
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()  # as fused kernels need it
        into = for_q, for_k, for_v, *for_learned = zeros(*given)
        homeward: tuple[RingStep, Wait, Tensor | None] | None = None
        for number, (step, visitors) in enumerate(work.arriving(k, v)):
            visiting = None
            if visitors is not None:
                visiting = [for_k, for_v] if number == 0 else zeros(visitors.k, visitors.v)
                sums = (for_q, *visiting, *for_learned)
                visitors.work.add_gradients(q, visitors.k, visitors.v, mixed, grad, sums)
            if number:
                _arrived(homeward, for_k, for_v)
                homeward = (step, *work.send_home(step, visiting, k, v))
        _arrived(homeward, for_k, for_v)
        return None, *(total.to(x.dtype) for total, x in zip(into, given, strict=True))


def _arrived(homeward: tuple[RingStep, Wait, Tensor | None] | None, *into: Tensor) -> None:
    """Add the gradients that have come home, always in the order of the steps."""
    if homeward is None:
        return
    step, wait, received = homeward
    wait()
    if received is not None and step.columns is not None:
        for total, part in zip(into, _unpack(received, *into), strict=True):
            total.index_add_(2, step.columns, part.to(total.dtype))
