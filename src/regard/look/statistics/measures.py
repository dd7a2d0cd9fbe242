"""Exact measures of a head: the entropy of its weights, and the weight on the previous, own and first token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from regard.look.capture.strips import ROWS
from regard.look.capture.trace import Attention
from regard.look.statistics.reducers import Entropy, KeyWeights, reduce

#: A head with at least this share of its weight on one kind of key is named after it.
MOST = 0.5
#: A head with at least this share of the maximum entropy is called even.
EVEN = 0.9


class Head(NamedTuple):
    """One head on one passage. Each number is a mean over the queries that see at least two keys."""

    layer: int  # counted from 1, in order of execution
    head: int  # counted from 1
    name: str  # the mechanism's module path
    entropy: float  # of the weights, in nats
    spread: float  # entropy as a share of its maximum, the log of the number of visible keys
    previous: float  # weight on the previous token
    own: float  # weight on the token itself
    first: float  # weight on the first visible token
    peak: float  # the maximum weight


def heads(attentions: Iterable[Attention], block: int = ROWS) -> list[Head]:
    """The measures of every head; ``block`` rows of weights are in memory at a time."""
    measured = []
    for layer, attention in enumerate(attentions, start=1):
        entropy, places = Entropy(), KeyWeights()
        reduce(attention, [entropy, places], block)
        counted = entropy.seen > 1  # [B, H, Q]
        spread = entropy.values / entropy.seen.clamp(min=2).log()
        measures = torch.stack((entropy.values, spread, *places.values)).double()  # [measures, B, H, Q]
        sums = (measures * counted).sum((1, 3)) / counted.sum((0, 2)).clamp(min=1)
        columns = sums.T.tolist()  # [H, measures]
        measured += [Head(layer, number, attention.name, *column) for number, column in enumerate(columns, start=1)]
    return measured


def describe(head: Head) -> str:
    """The kind of a head: previous token, own token, first token, even, focused or mixed."""
    places = {"previous token": head.previous, "own token": head.own, "first token": head.first}
    place = max(places, key=lambda name: places[name])
    if places[place] >= MOST:
        return place
    if head.spread >= EVEN:
        return "even"
    return "focused" if head.peak >= MOST else "mixed"
