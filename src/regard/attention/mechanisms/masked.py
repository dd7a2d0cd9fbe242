"""Exact attention over a pattern of keys: softmax attention with a mask that hides most pairs.

``masked`` takes any mask expression; the others are presets of it. A language model ANDs its causal mask to the
pattern, so windows reach both ways here. All of them decode step by step.

``topk`` keeps the best keys of each query, whichever they are (Gupta et al. 2021, "Memory-efficient Transformers via
Top-k"): the preset with the ``topk`` normalizer. Time stays quadratic, since every score must be known to find the best
ones; memory does not (backend ``blocked``).
"""

from dataclasses import dataclass
from typing import Literal

from regard.attention.masks.expression import parse
from regard.attention.masks.mask import Mask
from regard.attention.masks.patterns import Chunks, Columns, Dilated, Scattered, Sinks, Strided, Window
from regard.attention.mechanism import AttentionConfig, LayerSpec, Mechanism, SoftmaxConfig, exact
from regard.attention.normalizer import TopKNormalizerConfig
from regard.config import option


@dataclass(frozen=True)
class MaskedAttentionConfig(SoftmaxConfig, kind="masked"):
    """Exact attention over the keys that a mask expression allows; `regard mask` draws it."""

    mask: str = option(
        "window(64) | sinks(4)",
        "mask expression, such as 'causal & (window(64) | sinks(4))' or 'spans(10)' by token ids",
    )

    def check(self) -> None:
        super().check()
        self.pattern()

    def pattern(self) -> Mask:
        return parse(self.mask)


class PatternConfig(AttentionConfig):
    """Base of the presets: softmax attention over ``pattern``."""

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        return exact(spec)


@dataclass(frozen=True)
class WindowConfig(PatternConfig, kind="window"):
    """The nearest tokens, and optionally the first ones of the text (attention sinks)."""

    size: int = option(64, "number of visible tokens, the query's own included", least=1)
    sinks: int = option(0, "number of tokens at the beginning of a text that every token sees", least=0)

    def pattern(self) -> Mask:
        return Window(self.size) | Sinks(self.sinks) if self.sinks else Window(self.size)


@dataclass(frozen=True)
class DilatedConfig(PatternConfig, kind="dilated"):
    """Every n-th token (Beltagy et al. 2020, fig. 2c)."""

    size: int = option(64, "number of visible tokens, the query's own included", least=1)
    step: int = option(4, "distance between them", least=1)

    def pattern(self) -> Mask:
        return Dilated(self.size, self.step, self.size - 1)


@dataclass(frozen=True)
class StridedConfig(PatternConfig, kind="strided"):
    """The nearest tokens and every n-th of those before them: a fixed number of keys, so linear in the text."""

    size: int = option(32, "number of nearest tokens, the query's own included", least=1)
    stride: int = option(16, "distance between the others", least=1)
    far: int = option(16, "number of the others", least=1)

    def pattern(self) -> Mask:
        return Window(self.size, self.size - 1) | Dilated(self.far + 1, self.stride, self.far)


@dataclass(frozen=True)
class SparseConfig(PatternConfig, kind="sparse"):
    """The Sparse Transformer's two patterns, both heads' keys in one (Child et al. 2019, sec. 4.2 and 4.3)."""

    layout: Literal["strided", "fixed"] = option(
        "strided", "strided: the last tokens and every n-th before; fixed: chunks, and the last tokens of each"
    )
    stride: int = option(16, "length of a chunk; about the square root of the context", least=1)
    width: int = option(4, "fixed: number of tokens at the end of each chunk that every token sees", least=1)

    def check(self) -> None:
        super().check()
        if self.layout == "fixed" and self.width > self.stride:
            raise ValueError(f"width must be at most stride = {self.stride}, not {self.width}")

    def pattern(self) -> Mask:
        if self.layout == "fixed":
            return Chunks(self.stride) | Columns(self.stride, self.width)
        return Window(self.stride, self.stride - 1) | Strided(self.stride)


@dataclass(frozen=True)
class LongformerConfig(PatternConfig, kind="longformer"):
    """The nearest tokens, and global ones at the beginning (Beltagy et al. 2020)."""

    size: int = option(64, "number of visible tokens on each side, the query's own included", least=1)
    tokens: int = option(4, "number of global tokens at the beginning of a text", least=0)

    def pattern(self) -> Mask:
        return Window(self.size, self.size - 1) | Sinks(self.tokens, mutual=True)


@dataclass(frozen=True)
class BigBirdConfig(PatternConfig, kind="bigbird"):
    """The nearest tokens, global ones at the beginning, and random blocks of earlier ones (Zaheer et al. 2020)."""

    size: int = option(48, "number of visible tokens on each side, the query's own included", least=1)
    tokens: int = option(4, "number of global tokens at the beginning of a text", least=0)
    block: int = option(16, "length of a random block", least=1)
    random: int = option(2, "number of random blocks that each block sees", least=0)
    seed: int = option(0, "seed of the random blocks")

    def pattern(self) -> Mask:
        near = Window(self.size, self.size - 1) | Sinks(self.tokens, mutual=True)
        return near | Scattered.drawn(self.block, self.random, self.seed)


@dataclass(frozen=True)
class TopKConfig(AttentionConfig, kind="topk"):
    """Exact attention over each query's best keys."""

    k: int = option(16, "number of keys that a query keeps", least=1)
    softness: float = option(
        0.0, "0 cuts hard; above 0 the cut is a smooth gate with a gradient for every score", least=0
    )

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        return exact(spec, normalizer=self._normalizer.build(spec.context))

    @property
    def _normalizer(self) -> TopKNormalizerConfig:
        return TopKNormalizerConfig(self.k, self.softness)
