"""A language model defined outside the package: exponential moving averages of embeddings, one rate per channel.

The model laws run over it too, so that the contract in ``regard/models/base.py`` is enough to write a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.attention import AnySlots, Packed
from regard.config import option
from regard.models import LanguageModel, ModelConfig, State


@dataclass(frozen=True)
class AverageConfig(ModelConfig, kind="average"):
    """Sizes of the model."""

    vocabulary: int = option(65, "size of the vocabulary")
    context: int = option(64, "longest sequence in training")
    layers: int = option(2, "number of blocks")
    width: int = option(32, "model width")

    def make(self) -> Average:
        return Average(self)


class AverageBlock(nn.Module):
    """x + W m, where m_t = a m_{t-1} + (1 - a) x_t and a = sigmoid(rate)."""

    def __init__(self, width: int):
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(-2, 2, width))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, mean: Tensor, begins: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, N, C], mean [B, C], begins and real [B, N] -> outputs [B, N, C] and the last mean [B, C]."""
        decay, outs = torch.sigmoid(self.rate), []
        for t in range(x.shape[1]):
            previous = torch.where(begins[:, t, None], 0, mean)
            mean = torch.where(real[:, t, None], decay * previous + (1 - decay) * x[:, t], mean)
            outs.append(mean)
        return x + self.out(torch.stack(outs, 1)), mean


class Average(LanguageModel):
    """Tokens [B, N] to logits [B, N, V]."""

    compilable = False  # a Python loop over time

    def __init__(self, config: AverageConfig):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(AverageBlock(config.width) for _ in range(config.layers))
        self.unembed = nn.Linear(config.width, config.vocabulary, bias=False)

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        begins = slots.phase == 0 if isinstance(slots, Packed) else torch.zeros_like(tokens, dtype=torch.bool)
        means = [self.embed.weight.new_zeros(len(tokens), self.embed.embedding_dim)] * len(self.blocks)
        return self._run(self.embed(tokens), means, begins, torch.ones_like(begins))[0]

    def _run(self, x: Tensor, means: list[Tensor], begins: Tensor, real: Tensor) -> tuple[Tensor, list[Tensor]]:
        after = []
        for block, mean in zip(self.blocks, means, strict=True):
            if self.checkpointing and self.training:
                x, mean = checkpoint(block, x, mean, begins, real, use_reentrant=False)  # type: ignore[misc]
            else:
                x, mean = block(x, mean, begins, real)
            after.append(mean)
        return x, after

    def head(self, x: Tensor) -> Tensor:
        return self.unembed(x)

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        weight = self.embed.weight
        means = tuple(weight.new_zeros(batch, weight.shape[1]) for _ in self.blocks)
        return State(torch.zeros(batch, dtype=torch.long, device=weight.device), means, fixed=fixed)

    @torch.no_grad()
    def step(
        self, tokens: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        count = torch.full_like(state.position, tokens.shape[1]) if lengths is None else lengths
        real = torch.arange(tokens.shape[1], device=tokens.device) < count[:, None]
        x, after = self._run(self.embed(tokens), list(state.layers), torch.zeros_like(real), real)
        for buffer, mean in zip(state.layers, after, strict=True):
            buffer.copy_(mean)
        state.position.add_(count)
        if last:
            x = x[torch.arange(len(x), device=x.device), (count - 1).clamp(min=0)][:, None]
        return self.head(x), state._replace(used=state.used + tokens.shape[1])
