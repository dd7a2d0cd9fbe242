"""Untrained weights that prefer some tokens."""

from __future__ import annotations

import math

from run_faults.kit import Fault, Seen, altered
from run_faults.sabotage import parameter


def confident(seen: Seen) -> bool:
    """The first loss is far above that of a uniform guess."""
    return seen.record.losses[0] > math.log(seen.model.config.vocabulary) + 0.3


FAULTS: list[Fault] = [
    Fault(
        "embedding tied to the head starts too large",
        "model_differs",
        "embed",
        "The tied weights have the size that suits an embedding, so the first logits are large.",
        altered(parameter("embed.weight", lambda weight: weight.normal_(0.0, 1.0))),
        shows=confident,
        listed=False,
        quick=True,
    ),
]
