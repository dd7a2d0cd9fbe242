"""The family of attentions: which mechanism a layer has, and which pattern it looks at.

A config here says two things: a mask that is ANDed to the model's own (``pattern``; a language model's is causal), and
a mechanism. Each other member stands beside its mechanism: declaring a subclass with a ``kind`` is all it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from regard.attention.bias import Bias, Chain, SoftCap
from regard.attention.masks.mask import Full, Mask, Window
from regard.attention.masks.patterns import Sinks
from regard.attention.mechanism import Mechanism, Softmax
from regard.attention.normalizer import Normalizer, NormalizerConfig, SoftmaxNormalizerConfig
from regard.config import Choice, option


class Sizes(NamedTuple):
    """What a layer asks of its mechanism."""

    heads: int
    kv_heads: int
    head_width: int
    context: int  # the longest text of training
    bias: Bias | None = None  # of the model's positions
    dropout: float = 0.0
    backend: str = "auto"


class AttentionConfig(Choice):
    """Which attention a layer has."""

    def check(self) -> None:
        """Refuse impossible settings with a ValueError that names the fix."""

    def pattern(self) -> Mask:
        """Who may see whom, beside the model's own mask."""
        return Full()

    def mechanism(self, sizes: Sizes) -> Mechanism:
        """A mechanism for one layer; what it cannot do (a bias, a dropout) is a UserError."""
        raise NotImplementedError


def exact(sizes: Sizes, cap: float | None = None, normalizer: Normalizer | None = None) -> Softmax:
    """Softmax attention with the layer's bias; ``cap`` is a soft cap on the scores before the bias."""
    parts = [part for part in (None if cap is None else SoftCap(cap), sizes.bias) if part is not None]
    bias = parts[0] if len(parts) == 1 else Chain(*parts) if parts else None
    return Softmax(bias=bias, normalizer=normalizer, dropout=sizes.dropout, backend=sizes.backend)


@dataclass(frozen=True)
class SoftmaxConfig(AttentionConfig, kind="softmax"):
    """Exact attention over all tokens."""

    cap: float | None = option(None, "soft cap on the scores: cap * tanh(score / cap)")
    normalizer: NormalizerConfig = field(default_factory=SoftmaxNormalizerConfig)

    def check(self) -> None:
        self.normalizer.check()
        if self.cap is not None and not 0 < self.cap < float("inf"):
            raise ValueError(f"cap must be a finite number above zero, not {self.cap}; none leaves the scores alone")

    def mechanism(self, sizes: Sizes) -> Mechanism:
        return exact(sizes, self.cap, self.normalizer.build(sizes.context))


@dataclass(frozen=True)
class WindowConfig(AttentionConfig, kind="window"):
    """Exact attention over the nearest tokens, and perhaps the first ones of the text (attention sinks)."""

    size: int = option(64, "how many tokens are seen, the query's own included")
    sinks: int = option(0, "how many tokens at the beginning of a text are seen from everywhere")

    def check(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")
        if self.sinks < 0:
            raise ValueError(f"sinks must be zero or more, not {self.sinks}")

    def pattern(self) -> Mask:
        return Window(self.size) | Sinks(self.sinks) if self.sinks else Window(self.size)

    def mechanism(self, sizes: Sizes) -> Mechanism:
        return exact(sizes)
