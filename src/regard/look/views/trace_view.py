"""One pass of a model, kept: the queries, keys and values of every attention, asked for pictures, rows and measures.

Only what the attentions were given is held, never a map: every answer is computed when it is asked for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.errors import UserError
from regard.look.capture.trace import Attention, NotObservable, SpilledAttention
from regard.look.statistics import tiles
from regard.look.statistics.measures import heads
from regard.look.statistics.roles import role, scored
from regard.look.statistics.rollout import rollout
from regard.look.views import cell as cells_

if TYPE_CHECKING:
    from numpy.typing import NDArray

CELLS = 128  # of an overview's side


class Trace:
    """The attentions of one text, or of a source and its translation, each by its number in order of execution."""

    def __init__(
        self,
        tokens: list[str],
        others: list[str] | None,
        predicted: list[str] | None,
        attentions: Sequence[Attention | NotObservable | SpilledAttention],
        loss: float | None = None,
        random_scores: Callable[[], list[dict[str, list[float]]]] = list,
    ):
        """``tokens`` are the text or the source; ``others`` a translation as it goes in, ``predicted`` as foretold."""
        self.tokens, self.others, self.predicted = tokens, others, predicted
        self.attentions = list(attentions)
        self.loss = loss
        self._random_scores = random_scores
        self._layers = _layers([one.name for one in attentions])
        self._made: dict[tuple[int, int], NDArray[np.uint8]] = {}  # overviews by (size, attention)
        self._measures: dict[str, Any] | None = None
        self._loaded: tuple[int, Attention] | None = None  # the one that was asked for last

    @property
    def nbytes(self) -> int:
        """What it holds, for whoever bounds the memory of many."""
        held = [one.places if isinstance(one, SpilledAttention) else one[:6] for one in self.attentions]
        tensors = [x for parts in held for x in parts if hasattr(x, "nbytes")]
        return sum(x.nbytes for x in [*tensors, *self._made.values()])

    def about(self) -> dict[str, Any]:
        """The tokens on both axes and what attentions there are.

        ``query_tokens`` and ``key_tokens`` of an attention name the tokens along its axes (``tokens`` or
        ``target_tokens``); ``reason`` says why an attention has no exact map.
        """
        told = [self._about(number, one) for number, one in enumerate(self.attentions)]
        sides = {"tokens": self.tokens, "target_tokens": self.others, "predicted_tokens": self.predicted}
        return {**sides, "attentions": told, "loss": self.loss}

    def _about(self, number: int, one: Attention | NotObservable | SpilledAttention) -> dict[str, Any]:
        plan = one.plan
        queries, keys = self._sides(one)
        return {
            "index": number,
            "name": one.name.removesuffix(".mechanism"),
            "layer": self._layers[number],
            "heads": _heads(one),
            "queries": plan.queries.length,
            "keys": plan.keys.length,
            "kind": "self" if queries == keys else "cross",
            "query_tokens": queries,
            "key_tokens": keys,
            "causal": plan.own and plan.mask.reach().ahead == 0,
            "exact": not isinstance(one, NotObservable),
            "reason": one.why if isinstance(one, NotObservable) else None,
        }

    def _sides(self, one: Attention | NotObservable | SpilledAttention) -> tuple[str, str]:
        """Which tokens the queries are, and which the keys."""
        if self.others is None:
            return "tokens", "tokens"
        if not one.plan.own:
            return "target_tokens", "tokens"
        side = "tokens" if one.name.startswith("encoder") else "target_tokens"
        return side, side

    def overview(self, size: int = 64, seconds: float | None = None) -> tuple[NDArray[np.uint8], int]:
        """All maps in at most ``size`` cells a side, [A, H, Q, K], and how many attentions of them are there.

        The rest is zero. With ``seconds`` no attention is begun after they have passed, but one is made at each call:
        ask again until all are there. A map smaller than the others fills the upper left; `tiles.cells` tells how far.
        """
        if not 1 <= size <= CELLS:
            raise UserError(f"an overview has 1 to {CELLS} cells a side, not {size}")
        until = None if seconds is None else time.monotonic() + seconds
        ready, fresh = 0, 0
        for number, one in enumerate(self.attentions):
            if (size, number) not in self._made:
                if until is not None and fresh and time.monotonic() >= until:
                    break
                self._made[size, number] = (
                    _blank(one) if isinstance(one, NotObservable) else tiles.overview(self._attention(number), size)
                )
                fresh += 1
            ready += 1
        shapes = [
            (_heads(one), tiles.cells(one.plan.queries.length, size)[1], tiles.cells(one.plan.keys.length, size)[1])
            for one in self.attentions
        ]
        found = np.zeros((len(shapes), *(max(sides, default=0) for sides in zip(*shapes, strict=True))), np.uint8)
        for number in range(ready):
            h, q, k = self._made[size, number].shape
            found[number, :h, :q, :k] = self._made[size, number]
        return found, ready

    def tile(self, attention: int, head: int, level: int, row: int, column: int) -> NDArray[np.uint8]:
        """A square of one map, up to 256 cells a side of 2^level × 2^level pairs."""
        return tiles.tile(self._at(attention, head), head, level, row, column)

    def row(self, attention: int, head: int, query: int) -> dict[str, Any]:
        """Where one query looks."""
        one = self._at(attention, head)
        return cells_.row(one, head, _within("query", query, one.q.shape[2]))

    def cell(self, attention: int, head: int, query: int, key: int) -> dict[str, Any]:
        """One weight, worked out."""
        one = self._at(attention, head)
        _within("query", query, one.q.shape[2])
        return cells_.cell(one, head, query, _within("key", key, one.k.shape[2]))

    def measures(self) -> dict[str, Any]:
        """Entropy, uniformity and roles of every head that has a map."""
        if self._measures is None:
            random = self._random_scores()
            told = []
            for number, one in enumerate(self.attentions):
                if not isinstance(one, NotObservable):
                    told += [self._measured(number, head, random) for head in heads([self._attention(number)])]
            self._measures = {"heads": told}
        return self._measures

    def _measured(self, number: int, head: Any, random: list[dict[str, list[float]]]) -> dict[str, Any]:
        scores = scored(head, random[number] if number < len(random) else {})
        place = {"attention": number, "head": head.head - 1}
        return {**place, "entropy": head.entropy, "uniformity": head.spread, "roles": scores, "role": role(scores)}

    def rollout(self, size: int = 256) -> NDArray[np.float32]:
        """Attention through all layers of the text's (or the source's) own stack, [Q, K]."""
        own = [number for number, one in enumerate(self.attentions) if self._sides(one) == ("tokens", "tokens")]
        if not own:
            raise UserError("this model has no attention over its own text, so there is no rollout")
        for number in own:
            if isinstance(one := self.attentions[number], NotObservable):
                raise UserError(f"a rollout needs every layer's weights: {one.why}")
        return rollout((self._attention(number) for number in reversed(own)), size)

    def _at(self, attention: int, head: int) -> Attention:
        one = self.attentions[_within("attention", attention, len(self.attentions))]
        _within("head", head, _heads(one))
        return self._attention(attention)

    def _attention(self, number: int) -> Attention:
        """One of them, in memory."""
        one = self.attentions[number]
        if isinstance(one, NotObservable):
            raise UserError(one.why)
        if isinstance(one, Attention):
            return one
        if self._loaded is None or self._loaded[0] != number:
            self._loaded = None  # before the next comes, so that two are never held
            self._loaded = number, one.load()
        return self._loaded[1]


def _heads(one: Attention | NotObservable | SpilledAttention) -> int:
    return one.q.shape[1] if isinstance(one, Attention) else one.heads


def _blank(one: NotObservable) -> NDArray[np.uint8]:
    return np.zeros((one.heads, 0, 0), np.uint8)


def _within(name: str, number: int, count: int) -> int:
    if not 0 <= number < count:
        raise UserError(f"there is no {name} {number}: it is 0 to {count - 1}")
    return number


def _layers(names: list[str]) -> list[int]:
    """The layer of each attention: how many of its kind came before it (a repeated block is several layers)."""
    kinds = [re.sub(r"\.\d+\.", ".", name) for name in names]
    return [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
