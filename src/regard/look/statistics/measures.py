"""What a head does, in a few exact numbers: how widely it looks, and how much of it goes to the nearest places."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from regard.look.capture.strips import ROWS
from regard.look.capture.trace import Attention
from regard.look.statistics.reducers import Entropy, Places, reduce

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


def heads(attentions: Iterable[Attention], block: int = ROWS) -> list[Head]:
    """The measures of every head, with no more than `block` rows of weights held at a time."""
    found = []
    for layer, attention in enumerate(attentions, start=1):
        width, places = Entropy(), Places()
        reduce(attention, [width, places], block)
        counted = width.seen > 1  # [B, H, Q]
        spread = width.values / width.seen.clamp(min=2).log()
        measures = torch.stack((width.values, spread, *places.values)).double()  # [measures, B, H, Q]
        sums = (measures * counted).sum((1, 3)) / counted.sum((0, 2)).clamp(min=1)
        columns = sums.T.tolist()  # [H, measures]
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
