"""Top-k attention: each query keeps its best keys only (Gupta et al. 2021, "Memory-efficient Transformers via Top-k").

The cut is a value of the operator (``TopK``), hard or differentiable; here it becomes a choice for a model. Time stays
quadratic, since every score must be known to find the best; memory does not (``Blocked``).
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.attention.attention_config import AttentionConfig, Sizes
from regard.attention.backends.blocked import Blocked
from regard.attention.call import TopK
from regard.attention.mechanism import Mechanism, Softmax
from regard.config import option


@dataclass(frozen=True)
class TopKConfig(AttentionConfig, kind="topk"):
    """Exact attention over each query's best keys."""

    k: int = option(16, "how many keys a query keeps")
    softness: float = option(0.0, "0 cuts hard; above, the cut is a smooth gate that every score can move")

    def check(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, not {self.k}")
        if not 0 <= self.softness < float("inf"):
            raise ValueError(f"softness must be a finite number, zero or more, not {self.softness}")

    def mechanism(self, sizes: Sizes) -> Mechanism:
        backend = Blocked() if sizes.backend == "auto" else sizes.backend
        cut = TopK(self.k, self.softness)
        return Softmax(bias=sizes.bias, cut=cut, dropout=sizes.dropout, backend=backend)
