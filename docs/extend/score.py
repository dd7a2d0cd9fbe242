"""A score: the cosine of query and key times a learned factor (Swin v2, Liu et al. 2022, eq. 2).

regard train --with score.py --model.attention cosine --model.qk_norm false
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import AttentionConfig, LayerSpec, Mechanism, Score, Softmax
from regard.config import option


class Cosine(Score):
    """cos(q, k) * factor; the factor is stored as its logarithm."""

    def __init__(self, factor: float):
        super().__init__()
        self.log_factor = nn.Parameter(torch.full((1,), math.log(factor)))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.log_factor.exp().to(q.dtype)


@dataclass(frozen=True)
class CosineAttentionConfig(AttentionConfig, kind="cosine"):
    """Softmax attention over cosines."""

    factor: float = option(10.0, "initial factor of the cosines")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        score = Cosine(self.factor)
        return Softmax(score, bias=spec.bias, dropout=spec.dropout, backend=spec.backend)
