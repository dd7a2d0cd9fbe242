"""Sampling: from logits to the next token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.config import knob


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 is greedy."""

    temperature: float = knob(0.8, "below 1 bolder guesses are rarer; 0 always takes the likeliest token")
    top_k: int | None = knob(None, "choose among the k likeliest tokens only")

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be zero or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k}")

    def choose(self, logits: Tensor, noise: torch.Generator) -> Tensor:
        """Logits [B, V] to tokens [B]. The same generator state gives the same choice."""
        if self.temperature == 0:
            return logits.argmax(-1)
        logits = logits.float() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        # One uniform number a row through the cumulative distribution: a draw that does not depend on other rows.
        share = torch.rand(logits.shape[0], 1, generator=noise, dtype=torch.float64).to(logits.device)
        below = logits.double().softmax(-1).cumsum(-1)
        return (below < share * below[..., -1:]).sum(-1).clamp(max=logits.shape[-1] - 1)
