"""The family of attentions: which mechanism a layer has, and which pattern it looks at.

A config here says two things: a mask that is ANDed to the model's own (``pattern``; a language model's is causal), and
a mechanism. Each other member stands beside its mechanism: declaring a subclass with a ``kind`` is all it takes.
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

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        """A mechanism for one layer; what it cannot do (a bias, a dropout) is a UserError."""
        raise NotImplementedError


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
            raise ValueError(f"cap must be a finite number above zero, not {self.cap}; none leaves the scores alone")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        return exact(spec, self.cap, self.normalizer.build(spec.context))
