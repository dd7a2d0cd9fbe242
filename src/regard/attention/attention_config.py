"""The choice of attention: a mechanism, and a mask that the model ANDs to its own (a language model's is causal).

Each other kind is declared beside its mechanism; a subclass with a ``kind`` is registered by being defined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from regard.attention.bias import Bias, Chain, SoftCap
from regard.attention.masks.mask import Full, Mask
from regard.attention.mechanism import Mechanism, Softmax
from regard.attention.normalizer import Normalizer, NormalizerConfig, SoftmaxNormalizerConfig
from regard.config import Choice, option


class LayerSpec(NamedTuple):
    """The sizes and options of one attention layer."""

    heads: int
    kv_heads: int
    head_width: int
    context: int  # the longest training sequence
    bias: Bias | None = None  # the position bias
    dropout: float = 0.0
    backend: str = "auto"


class AttentionConfig(Choice):
    """The attention of a layer."""

    def check(self) -> None:
        """Refuse impossible settings with a ValueError that names the fix."""

    def pattern(self) -> Mask:
        """The mask that is ANDed to the model's own."""
        return Full()

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        """A mechanism for one layer; a UserError names what it does not support (a bias, dropout)."""
        raise NotImplementedError


def at_least(least: int, **settings: int) -> None:
    """Refuse settings below ``least``."""
    for name, value in settings.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")


def exact(spec: LayerSpec, cap: float | None = None, normalizer: Normalizer | None = None) -> Softmax:
    """Softmax attention with the layer's bias; ``cap`` is a soft cap on the scores before the bias."""
    parts = [part for part in (None if cap is None else SoftCap(cap), spec.bias) if part is not None]
    bias = parts[0] if len(parts) == 1 else Chain(*parts) if parts else None
    return Softmax(bias=bias, normalizer=normalizer, dropout=spec.dropout, backend=spec.backend)


@dataclass(frozen=True)
class SoftmaxConfig(AttentionConfig, kind="softmax"):
    """Exact attention over all tokens."""

    cap: float | None = option(None, "soft cap on the scores: cap * tanh(score / cap)")
    normalizer: NormalizerConfig = field(default_factory=SoftmaxNormalizerConfig)

    def check(self) -> None:
        self.normalizer.check()
        if self.cap is not None and not 0 < self.cap < float("inf"):
            raise ValueError(f"cap must be a finite number above zero, not {self.cap}; none means no cap")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        return exact(spec, self.cap, self.normalizer.build(spec.context))
