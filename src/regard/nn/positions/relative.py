"""Position encodings that add a bias to the scores, by the distance of query and key.

They depend on distances only, so sequences may be longer than in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from regard.attention import Alibi, Bias, Relative
from regard.attention.score import RelativeBuckets
from regard.config import option
from regard.nn.positions.position import Position, PositionConfig


class Distances(Position):
    """A separate bias for each layer, made by ``make``."""

    def __init__(self, make: Callable[[], Bias]):
        super().__init__()
        self.make = make

    def bias(self) -> Bias:
        return self.make()


class SharedDistances(Position):
    """One bias for all layers."""

    def __init__(self, bias: Bias):
        super().__init__()
        self.shared = bias

    def bias(self) -> Bias:
        return self.shared


@dataclass(frozen=True)
class AlibiConfig(PositionConfig, kind="alibi"):
    """A fixed penalty that grows with distance (Press et al. 2022, sec. 3)."""

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return Distances(partial(Alibi, width // head_width))


@dataclass(frozen=True)
class RelativeConfig(PositionConfig, kind="relative"):
    """A learned value r per layer, head and clipped distance, inside the scale: softmax((q·k + r_ij)/√d).

    The parameter is r/√d, which has the scale of a score and learns as fast; r itself hardly changed in 800 updates.
    """

    distance: int = option(64, "distances beyond this share a value")

    def check(self) -> None:
        if self.distance < 1:
            raise ValueError(f"distance must be at least 1, not {self.distance}")

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return Distances(partial(Relative, width // head_width, self.distance))


@dataclass(frozen=True)
class T5Config(PositionConfig, kind="t5"):
    """A learned value per head and bucket of distances, shared by all layers (Raffel et al. 2020, sec. 2.1)."""

    buckets: int = option(32, "number of buckets per head")
    furthest: int = option(128, "distances beyond this share a value")

    def check(self) -> None:
        if self.buckets < 4 or self.buckets % 2:
            raise ValueError(f"buckets must be an even number from 4 on, not {self.buckets}")
        if self.furthest <= self.buckets // 2:
            raise ValueError(
                f"the first {self.buckets // 2} distances have a bucket each, so furthest must be more, "
                f"not {self.furthest}"
            )

    def build(self, *, width: int, head_width: int, context: int, causal: bool = True) -> Position:
        return SharedDistances(RelativeBuckets(width // head_width, self.buckets, self.furthest, causal=causal))
