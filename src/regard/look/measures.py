"""What a head does, in a few exact numbers: how widely it looks, and how much of it goes to the nearest places."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.look.trace import BLOCK, Attention, Rows, rows

#: From this share of the weight on one kind of place on, that is what a head does.
MOST = 0.5
#: From this share of the greatest entropy on, a head looks everywhere alike.
EVEN = 0.9


class Head(NamedTuple):
    """One head on one passage. Each number is a mean over the queries that have a choice: at least two keys."""

    layer: int  # counted from 1, in order of execution
    head: int  # counted from 1
    name: str  # the mechanism's module path
    entropy: float  # of the weights, in nats
    spread: float  # entropy as a share of the greatest possible one, the log of how many keys are seen
    previous: float  # weight on the token just before
    own: float  # weight on the token itself
    first: float  # weight on the first token that is seen
    peak: float  # the greatest weight


def heads(attentions: Iterable[Attention], block: int = BLOCK) -> list[Head]:
    """The measures of every head, with no more than `block` rows of weights held at a time."""
    found = []
    for layer, attention in enumerate(attentions, start=1):
        total, count = torch.zeros(()), torch.zeros(())
        for piece in rows(attention, block):
            sums, queries = _sums(piece, attention.plan.own)
            total, count = total + sums, count + queries
        columns = (total / count.clamp(min=1)).T.tolist()  # [H, measures]
        found += [Head(layer, number, attention.name, *column) for number, column in enumerate(columns, start=1)]
    return found


def describe(head: Head) -> str:
    """The kind of head, in the words of the report."""
    places = {"previous token": head.previous, "own token": head.own, "first token": head.first}
    place = max(places, key=lambda name: places[name])
    if places[place] >= MOST:
        return place
    if head.spread >= EVEN:
        return "even"
    return "focused" if head.peak >= MOST else "mixed"


def _sums(piece: Rows, own_text: bool) -> tuple[Tensor, Tensor]:
    """Sums [measures, H] and counts [H] over the batch's queries that see at least two keys.

    Over another text, as an encoder's, there is no token before or itself.
    """
    weights, seen, pairs = piece
    keys = seen.sum(-1)  # [B, H, q]
    counted = keys > 1
    entropy = torch.special.entr(weights).sum(-1)
    same = (pairs.q.segment == pairs.k.segment) & own_text
    previous = (weights * (same & (pairs.k.order == pairs.q.order - 1))).sum(-1)
    own = (weights * (same & (pairs.k.order == pairs.q.order))).sum(-1)
    first = weights.gather(-1, seen.float().argmax(-1, keepdim=True))[..., 0]
    spread = entropy / keys.clamp(min=2).log()
    measures = torch.stack((entropy, spread, previous, own, first, weights.amax(-1)))  # [measures, B, H, q]
    return (measures * counted).sum((1, 3)).cpu().double(), counted.sum((0, 2)).cpu()
