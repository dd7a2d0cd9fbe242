"""A convolutional language model with dilations, as WaveNet (van den Oord et al. 2016) and TCN (Bai et al. 2018).

Layer i reaches (kernel - 1) · 2^(i mod cycle) tokens back, so the receptive field grows exponentially within a cycle;
``receptive_field`` is its length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor, nn

from regard.attention import AnySlots, Packed, Slots
from regard.config import option
from regard.errors import UserError
from regard.models.base import LanguageModel, ModelConfig, State
from regard.nn.convolution import CausalConvolution
from regard.nn.feedforward import ReLUSquared
from regard.nn.init import damp_logits, initialize, normal
from regard.nn.linear import Linear
from regard.nn.norm import NormConfig, RMSNormConfig


@dataclass(frozen=True)
class ConvolutionConfig(ModelConfig, kind="convolution"):
    """Sizes and parts of a convolutional language model."""

    vocabulary: int = option(65, "size of the vocabulary", least=1)
    context: int = option(256, "longest sequence in training, in tokens", least=1)
    layers: int = option(8, "number of blocks", least=1)
    width: int = option(128, "model width", least=1)
    kernel: int = option(2, "taps of each convolution", least=1)
    cycle: int = option(8, "dilations double over so many layers (1, 2, 4 ...), then restart at 1", least=1)
    unit: Literal["gated", "relu2"] = option("gated", "after the convolution: tanh(a) sigmoid(b), or max(a, 0)²")
    ratio: float = option(2.0, "hidden width of a block over the model's width")
    dropout: float = option(0.0, "dropout on embeddings and residual branches", least=0, below=1)
    tied: bool = option(True, "share the embedding with the output head")
    bias: bool = option(False, "biases in convolutions and linear layers")
    zero_init: bool = option(True, "initialize residual branches with zero rather than small weights")
    norm: NormConfig = field(default_factory=RMSNormConfig)

    def check(self) -> None:
        super().check()
        if self.unit not in ("gated", "relu2"):
            raise ValueError(f"there is no unit {self.unit!r}; choose from gated, relu2")
        if not 1 <= self.ratio * self.width < float("inf"):
            raise ValueError(f"ratio {self.ratio} of a width of {self.width} is no hidden unit; ratio = 2 would do")
        if (most := min(self.cycle, self.layers)) > 31:
            raise ValueError(f"{most} layers of doubling dilation exceed any text; cycle = 16 would do")

    def make(self) -> Convolution:
        return Convolution(self)

    def dilations(self) -> list[int]:
        """The dilation of each layer."""
        return [2 ** (i % self.cycle) for i in range(self.layers)]

    @property
    def receptive_field(self) -> int:
        """The number of tokens that a prediction depends on, the newest included.

        >>> ConvolutionConfig(layers=8, kernel=2, cycle=8).receptive_field
        256
        """
        return 1 + (self.kernel - 1) * sum(self.dilations())


class ConvolutionBlock(nn.Module):
    """x + down(unit(convolution(norm(x))))."""

    def __init__(self, config: ConvolutionConfig, dilation: int):
        super().__init__()
        units, self.gated = round(config.ratio * config.width), config.unit == "gated"
        self.norm = config.norm.build(config.width)
        self.convolution = CausalConvolution(
            config.width, units * (1 + self.gated), kernel=config.kernel, dilation=dilation, bias=config.bias
        )
        self.activation = ReLUSquared()
        self.down = Linear(units, config.width, bias=config.bias)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, phase: Tensor | None = None) -> Tensor:
        return x + self._unit(self.convolution(self.norm(x), phase))

    def step(self, x: Tensor, past: Tensor, position: Tensor, lengths: Tensor | None) -> Tensor:
        """The outputs for tokens that follow those in ``past``."""
        return x + self._unit(self.convolution.step(self.norm(x), past, position, lengths))

    def _unit(self, x: Tensor) -> Tensor:
        if self.gated:  # van den Oord et al. 2016, eq. 2
            a, b = x.chunk(2, dim=-1)
            x = torch.tanh(a) * torch.sigmoid(b)
        else:
            x = self.activation(x)
        return self.drop(self.down(x))


class Convolution(LanguageModel):
    """Tokens [B, N] to logits [B, N, V]."""

    config: ConvolutionConfig

    def __init__(self, config: ConvolutionConfig):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocabulary, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(ConvolutionBlock(config, dilation) for dilation in config.dilations())
        self.norm = config.norm.build(config.width)
        self.unembed = Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.unembed.weight = self.embed.weight
        self.reset()

    def reset(self) -> None:
        """As GPT-2: normal with deviation 0.02, residual branches scaled down with depth, or zero."""
        initialize(self, normal(0.02), normal(0.02))
        for block in self._blocks():
            block.down.weight.data.mul_(0.0 if self.config.zero_init else self.config.layers**-0.5)
        damp_logits(self.norm, self.config.width, 0.02)

    def features(self, tokens: Tensor, slots: AnySlots | None = None) -> Tensor:
        """Everything but the head: [B, N, C]. ``slots`` describes padding or packing. Default: one unpadded row.

        The documents of a packed row are independent. Padding comes last, where no real token depends on it.
        """
        if isinstance(slots, Slots):
            raise UserError("a convolution reads rows from left to right; give Range, Padded or Packed slots")
        phase = slots.phase if isinstance(slots, Packed) else None
        x = self.drop(self.embed(tokens))
        for block in self.blocks:
            x = self.run_block(block, x, phase)
        return self.norm(x)

    def residual_blocks(self) -> list[nn.Module]:
        return list(self.blocks)

    def start(self, batch: int, capacity: int, *, fixed: bool = False) -> State:
        """An empty state for ``batch`` rows. Its size does not depend on the length, so ``capacity`` has no effect."""
        position = torch.zeros(batch, dtype=torch.long, device=self.embed.weight.device)
        return State(position, tuple(block.convolution.start(batch) for block in self._blocks()), fixed=fixed)

    def consume(self, tokens: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        x = self.drop(self.embed(tokens))
        for block, past in zip(self._blocks(), state.layers, strict=True):
            x = block.step(x, past, state.position, lengths)
        state.position.add_(tokens.shape[1] if lengths is None else lengths)
        return self.norm(x), state._replace(used=state.used + tokens.shape[1])

    def _blocks(self) -> list[ConvolutionBlock]:
        return cast(list[ConvolutionBlock], list(self.blocks))
