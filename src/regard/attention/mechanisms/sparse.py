"""Exact attentions over a pattern of keys: softmax, through a mask that leaves most pairs out.

Windows look both ways here; a language model's own mask takes away what comes after. All of them decode step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.attention.attention_config import AttentionConfig, Sizes, exact
from regard.attention.masks.mask import Dilated, Mask, Strided, Window
from regard.attention.masks.patterns import Chunks, Columns, Scattered, Sinks
from regard.attention.mechanism import Mechanism
from regard.config import option


class PatternConfig(AttentionConfig):
    """Base: the exact softmax over ``pattern``."""

    def mechanism(self, sizes: Sizes) -> Mechanism:
        return exact(sizes)

    def _least(self, least: int, *names: str) -> None:
        """These settings are whole numbers from ``least`` on."""
        for name in names:
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True)
class DilatedConfig(PatternConfig, kind="dilated"):
    """Every so many-th token, as far back as there are keys to look at (Beltagy et al. 2020, fig. 2c)."""

    size: int = option(64, "how many tokens are seen, the query's own included")
    step: int = option(4, "how far apart they are")

    def check(self) -> None:
        self._least(1, "size", "step")

    def pattern(self) -> Mask:
        return Dilated(self.size, self.step, self.size - 1)


@dataclass(frozen=True)
class StridedConfig(PatternConfig, kind="strided"):
    """The nearest tokens, and every so many-th of those before them: a fixed number of keys, so linear in the text."""

    size: int = option(32, "how many of the nearest tokens are seen, the query's own included")
    stride: int = option(16, "how far apart the others are")
    far: int = option(16, "how many of the others are looked at")

    def check(self) -> None:
        self._least(1, "size", "stride", "far")

    def pattern(self) -> Mask:
        return Window(self.size, self.size - 1) | Dilated(self.far + 1, self.stride, self.far)


@dataclass(frozen=True)
class SparseConfig(PatternConfig, kind="sparse"):
    """The Sparse Transformer's two patterns, both heads' keys in one (Child et al. 2019, sec. 4.2 and 4.3)."""

    layout: Literal["strided", "fixed"] = option(
        "strided", "strided: the last tokens and every so many-th before; fixed: stretches, and the last tokens of each"
    )
    stride: int = option(16, "length of a stretch; about the square root of the context")
    width: int = option(4, "fixed: how many tokens at the end of each stretch are seen from everywhere")

    def check(self) -> None:
        self._least(1, "stride", "width")
        if self.layout == "fixed" and self.width > self.stride:
            raise ValueError(f"width must be at most stride = {self.stride}, not {self.width}")

    def pattern(self) -> Mask:
        if self.layout == "fixed":
            return Chunks(self.stride) | Columns(self.stride, self.width)
        return Window(self.stride, self.stride - 1) | Strided(self.stride)


@dataclass(frozen=True)
class LongformerConfig(PatternConfig, kind="longformer"):
    """The nearest tokens, and a few at the beginning that see and are seen from everywhere (Beltagy et al. 2020)."""

    size: int = option(64, "how many tokens are seen on each side, the query's own included")
    tokens: int = option(4, "how many tokens at the beginning of a text are global")

    def check(self) -> None:
        self._least(1, "size")
        self._least(0, "tokens")

    def pattern(self) -> Mask:
        return Window(self.size, self.size - 1) | Sinks(self.tokens, mutual=True)


@dataclass(frozen=True)
class BigBirdConfig(PatternConfig, kind="bigbird"):
    """The nearest tokens, global ones at the beginning, and random blocks of earlier ones (Zaheer et al. 2020)."""

    size: int = option(48, "how many tokens are seen on each side, the query's own included")
    tokens: int = option(4, "how many tokens at the beginning of a text are global")
    block: int = option(16, "length of a random block")
    random: int = option(2, "how many random blocks each block sees")
    seed: int = option(0, "of the random blocks")

    def check(self) -> None:
        self._least(1, "size", "block")
        self._least(0, "tokens", "random")

    def pattern(self) -> Mask:
        near = Window(self.size, self.size - 1) | Sinks(self.tokens, mutual=True)
        return near | Scattered.drawn(self.block, self.random, self.seed)
