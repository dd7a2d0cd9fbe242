"""A bias: scores fall with the logarithm of the distance, at a learned rate per head (KERPLE, Chi et al. 2022, eq. 4).

regard train --with bias.py --model.attention log-distance --model.position none
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.attention import AttentionConfig, Bias, LayerSpec, Mechanism, Pairs, Softmax
from regard.config import option


class LogDistance(Bias):
    """score - r log(1 + distance), with r = softplus(rate) for each head."""

    def __init__(self, heads: int, rate: float):
        super().__init__()
        self.rate = nn.Parameter(torch.full((heads,), rate))

    def adjust(self, score: Tensor, pairs: Pairs) -> Tensor:
        distance = (pairs.q.phase - pairs.k.phase).abs()
        rate = nn.functional.softplus(self.rate)[pairs.head]
        return score - (rate * torch.log1p(distance)).to(score.dtype)


@dataclass(frozen=True)
class LogDistanceConfig(AttentionConfig, kind="log-distance"):
    """Softmax attention whose scores fall with the logarithm of the distance."""

    rate: float = option(0.5, "initial rate, before the softplus")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        return Softmax(bias=LogDistance(spec.heads, self.rate), dropout=spec.dropout, backend=spec.backend)
