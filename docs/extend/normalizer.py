"""A normalizer: the softmax with one more in the denominator, so that a head can attend to nothing (Miller 2023).

regard train --with normalizer.py --model.attention softmax --model.attention.normalizer quiet
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import Normalizer, NormalizerConfig
from regard.config import option


@dataclass(frozen=True)
class QuietSoftmax(Normalizer):
    """exp(s) / (amount + sum of exp(s))."""

    amount: float = 1.0
    sums_to_one = False

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        top = scores.amax(-1, keepdim=True).clamp(min=0).detach()  # of the scores and of the added exp(0)
        weights = (scores - top).exp().masked_fill(~visible, 0)
        return weights / (weights.sum(-1, keepdim=True) + self.amount * torch.exp(-top))


@dataclass(frozen=True)
class QuietConfig(NormalizerConfig, kind="quiet"):
    """The softmax with a constant added to the denominator."""

    amount: float = option(1.0, "the constant")

    def build(self, context: int) -> Normalizer:
        return QuietSoftmax(self.amount)
