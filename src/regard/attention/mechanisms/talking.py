"""Talking-heads attention: heads exchange scores before the softmax and weights after it (Shazeer et al. 2020).

Algorithm 1 of the paper with the same number of heads everywhere: logits J = (Q Kᵀ)·P_l, weights softmax(J)·P_w. The
matrices are stored as their difference from the identity, so that they start as plain attention and weight decay leads
back to it. The position bias and the mask apply to the heads of the softmax, after the first exchange.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.attention.mechanism import AttentionConfig, LayerSpec, Mechanism, Softmax
from regard.attention.normalizer import SOFTMAX, Normalizer
from regard.attention.score import Bias, Score
from regard.config import option
from regard.errors import UserError


class HeadExchange(nn.Module):
    """x [B, H, Q, K] plus, for each head j, Σ_i talk[i, j] x_i."""

    def __init__(self, heads: int):
        super().__init__()
        self.talk = nn.Parameter(torch.zeros(1, heads, heads))  # plain attention: no exchange

    def exchange(self, x: Tensor) -> Tensor:
        return x + (self.talk.to(x.dtype).mT @ x.flatten(2)).view(x.shape)  # [1, H, H] @ [B, H, QK]


class TalkingScore(HeadExchange, Score):
    """Dot products, exchanged between heads."""

    width_scaled = True
    per_head = False

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.exchange(q @ k.transpose(-2, -1))


class TalkingNormalizer(HeadExchange, Normalizer):
    """The softmax, its weights exchanged between heads."""

    sums_to_one = False
    per_head = False

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        return self.exchange(SOFTMAX.normalize(scores, visible))


class Talking(Softmax):
    """softmax((q kᵀ·scale) mixed over heads + bias), mixed over heads, times v.

    It equals plain attention only while nothing is exchanged. A fused kernel has the scores of one head at a time, so
    this runs in blocks of queries.
    """

    def __init__(
        self, heads: int, bias: Bias | None = None, *, before: bool = True, after: bool = True, dropout: float = 0.0
    ):
        score = TalkingScore(heads) if before else None
        normalizer = TalkingNormalizer(heads) if after else None
        super().__init__(score, bias, normalizer=normalizer, dropout=dropout, backend="blocked")


@dataclass(frozen=True)
class TalkingConfig(AttentionConfig, kind="talking"):
    """Attention whose heads exchange scores and weights."""

    before: bool = option(True, "heads exchange scores before the softmax")
    after: bool = option(True, "heads exchange weights after the softmax")

    def mechanism(self, spec: LayerSpec) -> Mechanism:
        if spec.backend not in ("auto", "reference", "blocked"):
            raise UserError(f"talking heads cannot run on the backend {spec.backend!r}; set backend = auto")
        return Talking(spec.heads, spec.bias, before=self.before, after=self.after, dropout=spec.dropout)
