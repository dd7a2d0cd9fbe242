"""Talking-heads attention: heads exchange scores before the softmax and weights after it (Shazeer et al. 2020).

Algorithm 1 of the paper with as many heads everywhere: logits J = (Q Kᵀ)·P_l, weights softmax(J)·P_w. The matrices are
kept as their difference from the identity, so that they start as plain attention and weight decay leads back to it.
A bias of positions (and the mask) speaks to the heads that the softmax has, hence after the first exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.attention.attention_config import AttentionConfig, Sizes
from regard.attention.backends.blocked import Block, in_blocks, mixed, near
from regard.attention.backends.reference import weigh
from regard.attention.bias import Bias
from regard.attention.call import Out, Plan, allowed
from regard.attention.mechanism import Mechanism
from regard.config import option
from regard.errors import UserError


class Talking(Mechanism):
    """softmax((q kᵀ·scale) mixed over heads + bias), mixed over heads, times v.

    No fused kernel has scores of all heads at hand: it runs in blocks of queries, each computed again in the backward.
    """

    exact = False  # it is another function than the reference, except where the heads are silent

    def __init__(
        self, heads: int, bias: Bias | None = None, *, before: bool = True, after: bool = True, dropout: float = 0.0
    ):
        super().__init__()
        self.before, self.after = before, after
        self.bias = bias
        self.dropout = dropout
        #: What head j hears from head i beyond what it says itself, [i, j]: of scores, then of weights.
        self.talk = nn.Parameter(torch.zeros(2, heads, heads))

    def reset(self) -> None:
        """Silence: plain attention."""
        nn.init.zeros_(self.talk)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Out:
        scale = 1 / math.sqrt(q.shape[-1])
        dropout = self.dropout if self.training else 0.0

        def work(block: Block) -> Tensor:
            pairs = block.pairs(plan, q)
            near_k, near_v = near(q, k, v, block)
            scores = q[:, :, block.rows] @ near_k.transpose(-2, -1) * scale
            if self.before:
                scores = exchange(scores, self.talk[0])
            if self.bias is not None:
                scores = self.bias.adjust(scores, pairs)
            weights = weigh(scores, allowed(plan.mask, pairs).expand(scores.shape), 1.0, None)
            if self.after:
                weights = exchange(weights, self.talk[1])
            return mixed(weights, near_v, dropout)

        return Out(in_blocks(plan, work), None)


def exchange(x: Tensor, talk: Tensor) -> Tensor:
    """x [B, H, Q, K] and, for each head, what the others tell it."""
    told = talk.to(x.dtype).T @ x.flatten(2)  # [H, H] @ [B, H, QK]
    return x + told.view(x.shape)


@dataclass(frozen=True)
class TalkingConfig(AttentionConfig, kind="talking"):
    """Attention whose heads exchange scores and weights."""

    before: bool = option(True, "heads exchange scores before the softmax")
    after: bool = option(True, "heads exchange weights after the softmax")

    def mechanism(self, sizes: Sizes) -> Mechanism:
        if sizes.backend not in ("auto", "reference", "blocked"):
            raise UserError(f"talking heads cannot run on the backend {sizes.backend!r}; set backend = auto")
        return Talking(sizes.heads, sizes.bias, before=self.before, after=self.after, dropout=sizes.dropout)
