"""Scores of queries and keys, before scale, bias and mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Score(nn.Module):
    """Base: ``forward(q [B,H,Q,Dq], k [B,H,K,Dk]) -> [B,H,Q,K]``. ``width_scaled``: divided by √D by default."""

    width_scaled = False
    per_head = True  # the scores of a head follow from its own queries and keys


class Dot(Score):
    """q·k, scaled by 1/√D so that the variance does not grow with the width (Vaswani et al. 2017, eq. 1)."""

    width_scaled = True

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1)


class General(Score):
    """qᵀ W k, also between different widths (Luong et al. 2015, eq. 8)."""

    def __init__(self, query_width: int, key_width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_width, key_width))
        nn.init.normal_(self.weight, std=1 / math.sqrt(query_width * key_width) ** 0.5)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ self.weight @ k.transpose(-2, -1)


class Additive(Score):
    """vᵀ tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2).

    ``key_width`` None: the keys given are U k already, for decoders that multiply them once for all steps.
    """

    def __init__(self, query_width: int, key_width: int | None, hidden: int):
        super().__init__()
        self.query = nn.Linear(query_width, hidden, bias=False)
        self.key = nn.Identity() if key_width is None else nn.Linear(key_width, hidden, bias=False)
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        both = self.query(q)[..., :, None, :] + self.key(k)[..., None, :, :]  # [B,H,Q,K,hidden]
        return self.out(both.tanh()).squeeze(-1)
