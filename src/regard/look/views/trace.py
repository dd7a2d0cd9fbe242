"""The trace of one forward pass: the inputs of every attention, and the maps, rows and measures computed from them.

Only queries, keys and values are stored. Weights are computed on request.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.look.capture.layer_names import LayerName, layer_names
from regard.look.capture.observe import Attention
from regard.look.statistics import maps
from regard.look.statistics.measures import Head, heads, role
from regard.look.views import cell as cells
from regard.runs.disk import JsonObject

Scores = dict[str, float]
CELLS = 128  # per side of an overview


@dataclass(frozen=True, eq=False)
class Trace:
    """The attentions of one text, or of a source and its translation, numbered in order of execution."""

    tokens: list[str]  # the text or source
    target_tokens: list[str] | None  # the decoder inputs of a translation
    predicted_tokens: list[str] | None  # the labels of a translation or of an encoder; else the next tokens
    attentions: list[Attention]
    loss: float | None
    random_scores: Callable[[], list[list[Scores]]]  # by attention and head; [] without such scores
    effects: Callable[[], list[list[Scores]]] = list  # by attention and head; [] if they are not measured
    _lock: Lock = field(default_factory=Lock, init=False)
    _overviews: dict[int, tuple[NDArray[np.uint8], int]] = field(default_factory=dict, init=False)  # by size

    @property
    def nbytes(self) -> int:
        """Memory and disk space held by this trace, in bytes; used by the session cache's limit."""
        pictures = [picture for picture, _ in list(self._overviews.values())]  # another thread may add one
        return sum(x.nbytes for x in [*self.attentions, *pictures])

    def about(self) -> JsonObject:
        """The tokens on both axes and the attentions.

        An attention's ``query_tokens`` and ``key_tokens`` name the tokens of its axes; ``reason`` says why it has no
        map.
        """
        layers = layer_names([one.name for one in self.attentions])
        described = [self._about(i, one, layers[i]) for i, one in enumerate(self.attentions)]
        sides = {"tokens": self.tokens, "target_tokens": self.target_tokens, "predicted_tokens": self.predicted_tokens}
        return {**sides, "attentions": described, "loss": self.loss}

    def _about(self, index: int, one: Attention, layer: LayerName) -> JsonObject:
        queries, keys = self._sides(one)
        return {
            "index": index,
            "name": one.name.removesuffix(".mechanism"),
            "layer": layer.number - 1,
            "layer_name": layer.name,
            "layer_short": layer.short,
            "heads": one.heads,
            "queries": one.plan.queries.length,
            "keys": one.plan.keys.length,
            "kind": "self" if queries == keys else "cross",
            "query_tokens": queries,
            "key_tokens": keys,
            "causal": one.plan.same_tokens and one.plan.mask.reach().ahead == 0,
            "exact": one.unobservable is None,
            "reason": one.unobservable,
            "not_stepwise": cells.not_stepwise(one.mechanism),
        }

    def _sides(self, one: Attention) -> tuple[str, str]:
        """Which tokens the queries are, and which the keys."""
        if self.target_tokens is None:
            return "tokens", "tokens"
        if not one.plan.same_tokens:
            return "target_tokens", "tokens"
        side = "tokens" if one.name.startswith("encoder") else "target_tokens"
        return side, side

    def overview(self, size: int = 64, seconds: float = math.inf) -> tuple[NDArray[np.uint8], int]:
        """All maps in at most ``size`` cells per side, [A, H, Q, K], and the number of attentions that are ready.

        The rest is zero. No attention is begun after ``seconds``, but each call computes at least one: repeat the call
        until all are ready. A smaller map fills the upper left; `maps.cells` gives its size.
        """
        if not 1 <= size <= CELLS:
            raise UserError(f"an overview has 1 to {CELLS} cells per side, not {size}")
        with self._lock:
            if size not in self._overviews:
                lengths = [(one.heads, one.plan.queries.length, one.plan.keys.length) for one in self.attentions]
                shapes = np.array([(h, maps.cells(q, size)[1], maps.cells(k, size)[1]) for h, q, k in lengths])
                self._overviews[size] = np.zeros((len(shapes), *shapes.max(0)), np.uint8), 0
            picture, begin = self._overviews[size]
            ready, until = begin, time.monotonic() + seconds
            while ready < len(self.attentions) and (ready == begin or time.monotonic() < until):
                one = self.attentions[ready]
                if one.unobservable is None:
                    drawn = maps.overview(one.load(), size)
                    h, q, k = drawn.shape
                    picture[ready, :h, :q, :k] = drawn
                ready += 1
            self._overviews[size] = picture, ready
            return picture.copy(), ready

    def tile(self, attention: int, head: int, level: int, row: int, column: int) -> NDArray[np.uint8]:
        """A square of one map, up to 256 cells per side of 2^level × 2^level pairs."""
        return maps.tile(self._at(attention, head), head, level, row, column)

    def row(self, attention: int, head: int, query: int) -> JsonObject:
        """The weights of one query."""
        return cells.row(self._at(attention, head, query), head, query)

    def cell(self, attention: int, head: int, query: int, key: int) -> JsonObject:
        """One weight, computed step by step."""
        return cells.cell(self._at(attention, head, query, key), head, query, key)

    @cached_property
    def measures(self) -> JsonObject:
        """Entropy, uniformity, roles and effect of every head with a map."""
        random, effects, measured = self.random_scores(), self.effects(), []
        for number, one in enumerate(self.attentions):
            for head in heads([one.load()]) if one.unobservable is None else ():
                by_text, effect = (scores[number][head.head - 1] if scores else {} for scores in (random, effects))
                measured.append(_measured(number, head, one.plan.same_tokens, by_text, effect))
        return {"heads": measured}

    def rollout(self, size: int = 256) -> NDArray[np.float32]:
        """Attention rollout through the layers of the text's (or the source's) stack, [Q, K]."""
        own = [one for one in self.attentions if self._sides(one) == ("tokens", "tokens")]
        if not own:
            raise UserError("this model has no self-attention over its text, so there is no rollout")
        for one in own:
            if one.unobservable is not None:
                raise UserError(f"a rollout needs every layer's weights: {one.unobservable}")
        return maps.rollout(own, size)

    def _at(self, attention: int, head: int, query: int = 0, key: int = 0) -> Attention:
        """An attention with a map, after a check of all indices."""
        _check("attention", attention, len(self.attentions))
        one = self.attentions[attention]
        _check("head", head, one.heads)
        if one.unobservable is not None:
            raise UserError(one.unobservable)
        _check("query", query, one.q.shape[2])
        _check("key", key, one.k.shape[2])
        return one.load()


def _measured(number: int, head: Head, own: bool, random: Scores, effects: Scores) -> JsonObject:
    """The measures of one head; in cross-attention (not ``own``) there is no previous token and no token itself."""
    scores: dict[str, float | None] = {"previous": head.previous if own else None, "induction": None}
    scores |= {"sink": head.first, "positional": None, "self": head.own if own else None, **random}
    named = {"roles": scores, "role": role(scores, head.spread, effects), "effects": effects}
    place = {"attention": number, "head": head.head - 1}
    return {**place, "entropy": head.entropy, "uniformity": head.spread, **named}


def _check(name: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        raise UserError(f"there is no {name} {number}: it is 0 to {count - 1}")
