"""The trace of one forward pass: the inputs of every attention, and the maps, rows and measures computed from them.

Only queries, keys and values are stored. Weights are computed on request.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from regard.errors import UserError
from regard.look.capture.trace import Attention, NotObservable, Observation
from regard.look.statistics import tiles
from regard.look.statistics.measures import Head, heads
from regard.look.statistics.roles import role, scored
from regard.look.statistics.rollout import rollout
from regard.look.views import cell as cells
from regard.look.views.reading import JsonObject

if TYPE_CHECKING:
    from numpy.typing import NDArray

CELLS = 128  # per side of an overview


class Trace:
    """The attentions of one text, or of a source and its translation, numbered in order of execution."""

    def __init__(
        self,
        tokens: list[str],
        target_tokens: list[str] | None,
        predicted_tokens: list[str] | None,
        attentions: Sequence[Observation],
        loss: float | None = None,
        random_scores: Callable[[], list[dict[str, list[float]]]] = list,
    ):
        """``tokens``: the text or source; of a translation also the decoder inputs and the labels."""
        self.tokens, self.target_tokens, self.predicted_tokens = tokens, target_tokens, predicted_tokens
        self.attentions = list(attentions)
        self.loss = loss
        self._random_scores = random_scores
        self._layers = _layers([one.name for one in attentions])
        self._overviews: dict[tuple[int, int], NDArray[np.uint8]] = {}  # by (size, attention)
        self._measures: JsonObject | None = None
        self._loaded: tuple[int, Attention] | None = None  # the last spilled one that was read

    @property
    def nbytes(self) -> int:
        """Memory and disk space held by this trace, in bytes; used by the session cache's limit."""
        return sum(x.nbytes for x in [*self.attentions, *self._overviews.values()])

    def about(self) -> JsonObject:
        """The tokens on both axes and the attentions.

        An attention's ``query_tokens`` and ``key_tokens`` name the tokens of its axes; ``reason`` says why it has no
        map.
        """
        described = [self._about(number, one) for number, one in enumerate(self.attentions)]
        sides = {"tokens": self.tokens, "target_tokens": self.target_tokens, "predicted_tokens": self.predicted_tokens}
        return {**sides, "attentions": described, "loss": self.loss}

    def _about(self, number: int, one: Observation) -> JsonObject:
        plan = one.plan
        queries, keys = self._sides(one)
        return {
            "index": number,
            "name": one.name.removesuffix(".mechanism"),
            "layer": self._layers[number],
            "heads": one.heads,
            "queries": plan.queries.length,
            "keys": plan.keys.length,
            "kind": "self" if queries == keys else "cross",
            "query_tokens": queries,
            "key_tokens": keys,
            "causal": plan.same_tokens and plan.mask.reach().ahead == 0,
            "exact": not isinstance(one, NotObservable),
            "reason": one.why if isinstance(one, NotObservable) else None,
        }

    def _sides(self, one: Observation) -> tuple[str, str]:
        """Which tokens the queries are, and which the keys."""
        if self.target_tokens is None:
            return "tokens", "tokens"
        if not one.plan.same_tokens:
            return "target_tokens", "tokens"
        side = "tokens" if one.name.startswith("encoder") else "target_tokens"
        return side, side

    def overview(self, size: int = 64, seconds: float | None = None) -> tuple[NDArray[np.uint8], int]:
        """All maps in at most ``size`` cells per side, [A, H, Q, K], and the number of attentions that are ready.

        The rest is zero. With ``seconds``, no attention is begun after that time, but each call computes at least one:
        repeat the call until all are ready. A smaller map fills the upper left; `tiles.cells` gives its size.
        """
        if not 1 <= size <= CELLS:
            raise UserError(f"an overview has 1 to {CELLS} cells per side, not {size}")
        until = None if seconds is None else time.monotonic() + seconds
        ready, computed = 0, 0
        for number, one in enumerate(self.attentions):
            if (size, number) not in self._overviews:
                if until is not None and computed and time.monotonic() >= until:
                    break
                self._overviews[size, number] = (
                    np.zeros((one.heads, 0, 0), np.uint8)
                    if isinstance(one, NotObservable)
                    else tiles.overview(self._attention(number), size)
                )
                computed += 1
            ready += 1
        shapes = [
            (one.heads, tiles.cells(one.plan.queries.length, size)[1], tiles.cells(one.plan.keys.length, size)[1])
            for one in self.attentions
        ]
        picture = np.zeros((len(shapes), *(max(sides, default=0) for sides in zip(*shapes, strict=True))), np.uint8)
        for number in range(ready):
            h, q, k = self._overviews[size, number].shape
            picture[number, :h, :q, :k] = self._overviews[size, number]
        return picture, ready

    def tile(self, attention: int, head: int, level: int, row: int, column: int) -> NDArray[np.uint8]:
        """A square of one map, up to 256 cells per side of 2^level × 2^level pairs."""
        return tiles.tile(self._at(attention, head), head, level, row, column)

    def row(self, attention: int, head: int, query: int) -> JsonObject:
        """The weights of one query."""
        one = self._at(attention, head)
        return cells.row(one, head, _within("query", query, one.q.shape[2]))

    def cell(self, attention: int, head: int, query: int, key: int) -> JsonObject:
        """One weight, computed step by step."""
        one = self._at(attention, head)
        _within("query", query, one.q.shape[2])
        return cells.cell(one, head, query, _within("key", key, one.k.shape[2]))

    def measures(self) -> JsonObject:
        """Entropy, uniformity and roles of every head with a map."""
        if self._measures is None:
            random = self._random_scores()
            numbers = [n for n, one in enumerate(self.attentions) if not isinstance(one, NotObservable)]
            measured = [(n, head) for n in numbers for head in heads([self._attention(n)])]
            self._measures = {"heads": [_measured(n, head, random) for n, head in measured]}
        return self._measures

    def rollout(self, size: int = 256) -> NDArray[np.float32]:
        """Attention rollout through the layers of the text's (or the source's) stack, [Q, K]."""
        own = [number for number, one in enumerate(self.attentions) if self._sides(one) == ("tokens", "tokens")]
        if not own:
            raise UserError("this model has no self-attention over its text, so there is no rollout")
        for number in own:
            if isinstance(one := self.attentions[number], NotObservable):
                raise UserError(f"a rollout needs every layer's weights: {one.why}")
        return rollout((self._attention(number) for number in reversed(own)), size)

    def _at(self, attention: int, head: int) -> Attention:
        _within("attention", attention, len(self.attentions))
        _within("head", head, self.attentions[attention].heads)
        return self._attention(attention)

    def _attention(self, number: int) -> Attention:
        """An attention in memory; one spilled attention is loaded at a time."""
        one = self.attentions[number]
        if isinstance(one, NotObservable):
            raise UserError(one.why)
        if isinstance(one, Attention):
            return one
        if self._loaded is None or self._loaded[0] != number:
            self._loaded = None  # first, so that two are never in memory
            self._loaded = number, one.load()
        return self._loaded[1]


def _measured(number: int, head: Head, random: list[dict[str, list[float]]]) -> JsonObject:
    scores = scored(head, random[number] if number < len(random) else {})
    place = {"attention": number, "head": head.head - 1}
    return {**place, "entropy": head.entropy, "uniformity": head.spread, "roles": scores, "role": role(scores)}


def _within(name: str, number: int, count: int) -> int:
    if not 0 <= number < count:
        raise UserError(f"there is no {name} {number}: it is 0 to {count - 1}")
    return number


def _layers(names: list[str]) -> list[int]:
    """The layer of each attention: the number of earlier ones of its kind (a repeated block is several layers)."""
    kinds = [re.sub(r"\.\d+\.", ".", name) for name in names]
    return [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
