"""Which keys every rank needs of every other one, and the tiles that it computes with them.

The slots of all ranks (order, segment and phase: three integers per token) are gathered once for each plan. From them
every rank reaches the mask's verdict on the tokens of any two ranks, so both sides of a message know, without asking,
whether it is sent and which keys are in it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.call import Plan
from regard.attention.ring.transport import Transport
from regard.attention.slots import AnySlots, Slots, select
from regard.attention.tiling.quarters import HOST, TileSizes, quartered, visible_keys
from regard.attention.tiling.tile import Tile, with_masks
from regard.errors import UserError


class Visit:
    """This rank's queries and the keys of one rank that they may see."""

    def __init__(self, host: Plan, device: torch.device, sizes: dict[bool, TileSizes]):
        self.plan = host._replace(queries=host.queries.to(device), keys=host.keys.to(device))
        self._host, self._device, self._sizes = host, device, sizes
        self._tiles: dict[bool, tuple[Tile, ...]] = {}

    def tiles(self, fused: bool) -> tuple[Tile, ...]:
        """The tiles of the two, made at the first call. ``fused``: for a kernel that holds no scores."""
        if fused not in self._tiles:
            made = quartered(self._host, self._sizes[fused], causal=fused)
            self._tiles[fused] = tuple(with_masks(made, self.plan, self._device))
        return self._tiles[fused]


class RingStep(NamedTuple):
    """In step t rank r reads keys of rank r - t, and rank r + t reads keys of rank r."""

    source: int
    visit: Visit | None  # None: no key of ``source`` is visible here
    target: int
    columns: Tensor | None  # the indices of the keys that ``target`` may see; None: there are none


class RingRoute(NamedTuple):
    """The steps of one plan; in the first one a rank reads its own keys."""

    transport: Transport
    steps: tuple[RingStep, ...]


def find_route(plan: Plan, device: torch.device, transport: Transport, sizes: dict[bool, TileSizes]) -> RingRoute:
    """The route of a plan for the tokens of this rank. Every rank calls it at the same time."""
    plan = plan._replace(queries=plan.queries.to(HOST), keys=plan.keys.to(HOST))
    rank, size, smallest = transport.rank, transport.size, sizes[False].smallest
    if size == 1:
        return RingRoute(transport, (RingStep(0, Visit(plan, device, sizes), 0, None),))
    queries = _shards(plan.queries, device, transport)
    keys = queries if plan.same_tokens else _shards(plan.keys, device, transport)
    plan = plan._replace(queries=queries[rank], keys=keys[rank])
    steps = [RingStep(rank, Visit(plan, device, sizes), rank, None)]
    for step in range(1, size):
        source, target = (rank - step) % size, (rank + step) % size
        read = visible_keys(plan.mask, queries[rank], keys[source], smallest)
        sent = visible_keys(plan.mask, queries[target], keys[rank], smallest)
        there = plan._replace(keys=select(keys[source], read), same_tokens=False)
        visit = Visit(there, device, sizes) if len(read) else None
        steps.append(RingStep(source, visit, target, sent.to(device) if len(sent) else None))
    return RingRoute(transport, tuple(steps))


def _shards(slots: AnySlots, device: torch.device, transport: Transport) -> list[Slots]:
    """The slots of every rank, on the host."""
    order, segment, phase = select(slots, torch.arange(slots.length))
    if phase.is_floating_point():
        raise UserError("ring attention needs positions that are whole numbers; use one process for each row")
    own = torch.cat([order[..., None], segment[..., None], phase.reshape(*order.shape, -1)], dim=-1)
    gathered = [each.to(HOST) for each in transport.gather(own.to(device))]
    return [Slots(each[..., 0], each[..., 1], each[..., 2:].reshape(phase.shape)) for each in gathered]
