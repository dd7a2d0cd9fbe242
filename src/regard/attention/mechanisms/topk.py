"""Top-k attention: each query keeps its best keys only (Gupta et al. 2021, "Memory-efficient Transformers via Top-k").

The preset of softmax attention with the ``topk`` normalizer. Time stays quadratic, since every score must be known to
find the best ones; memory does not (backend ``blocked``).
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.attention.attention_config import AttentionConfig, LayerSpec, exact
from regard.attention.mechanism import Mechanism
from regard.attention.normalizer import TopKNormalizerConfig
from regard.config import option


@dataclass(frozen=True)
class TopKConfig(AttentionConfig, kind="topk"):
    """Exact attention over each query's best keys."""

    k: int = option(16, "number of keys that a query keeps")
    softness: float = option(0.0, "0 cuts hard; above 0 the cut is a smooth gate with a gradient for every score")

    def check(self) -> None:
        self._normalizer.check()

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        return exact(spec, normalizer=self._normalizer.build(spec.context))

    @property
    def _normalizer(self) -> TopKNormalizerConfig:
        return TopKNormalizerConfig(self.k, self.softness)
