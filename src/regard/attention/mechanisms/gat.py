"""The additive scores of graph attention networks (Veličković et al. 2018; Brody et al. 2022)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.mechanism import AttentionConfig, LayerSpec, Mechanism, Softmax
from regard.attention.score import Score
from regard.config import option


class GraphScore(Score):
    """LeakyReLU(aᵀq + bᵀk) (Veličković et al. 2018, eq. 3), which ranks the keys alike for every query.

    ``dynamic``: aᵀ LeakyReLU(q + k) (Brody et al. 2022, eq. 7), which does not.
    """

    per_head = False  # each head has its own vectors

    def __init__(self, heads: int, width: int, slope: float = 0.2, *, dynamic: bool = False):
        super().__init__()
        self.slope = slope
        self.query = nn.Parameter(torch.randn(1, heads, 1, width) * width**-0.5)
        self.key = None if dynamic else nn.Parameter(torch.randn(1, heads, 1, width) * width**-0.5)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        if self.key is None:
            both = F.leaky_relu(q[:, :, :, None] + k[:, :, None], self.slope)  # [B, H, Q, K, D]
            return (both * self.query[..., None, :]).sum(-1)
        of_query, of_key = (q * self.query).sum(-1), (k * self.key).sum(-1)
        return F.leaky_relu(of_query[..., :, None] + of_key[..., None, :], self.slope)


@dataclass(frozen=True)
class GATConfig(AttentionConfig, kind="gat"):
    """Softmax attention by additive scores, as graph attention networks have them."""

    dynamic: bool = option(False, "the nonlinearity before the vector that scores, as GATv2")
    slope: float = option(0.2, "slope of the leaky ReLU below zero")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        score = GraphScore(spec.heads, spec.head_width, self.slope, dynamic=self.dynamic)
        return Softmax(score, spec.bias, dropout=spec.dropout, backend=spec.backend)
