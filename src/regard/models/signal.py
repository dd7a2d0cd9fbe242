"""A Transformer encoder of signals: sounds, time series, whatever is an array over time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from regard.attention import Full, Padded, Range
from regard.config import option
from regard.errors import UserError
from regard.models.base import ArrayEncoder
from regard.models.parts import BlocksConfig, check_length
from regard.nn.attention import AttentionContext
from regard.nn.blocks.block import Stack
from regard.nn.feedforward import FeedForwardConfig, GELUConfig
from regard.nn.heads import ClassesHeadConfig, HeadConfig, pooled
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.positions.position import LearnedPositionConfig, NoPositionConfig, PositionConfig
from regard.nn.signals import PatchesConfig, SignalEmbeddingConfig


@dataclass(frozen=True)
class SignalConfig(BlocksConfig, kind="signal"):
    """Sizes and parts of an encoder of signals."""

    generates, reads, vocabulary, fewest_layers = False, "signals", 0, 0
    channels: int = option(1, "numbers at each point in time", least=1)
    points: int = option(128, "points in time of the longest signal in training", least=1)
    class_token: bool = option(False, "a learned token before the parts, whose features stand for the signal")
    bias: bool = option(True, "biases in linear layers")
    zero_init: bool = option(False, "initialize residual branches with zero rather than small weights")
    statistics: bool = option(False, "with head.pool = mean: pool the deviations of the parts beside their mean")
    embed: SignalEmbeddingConfig = field(default_factory=PatchesConfig, metadata={"help": "the parts of a signal"})
    position: PositionConfig = field(default_factory=LearnedPositionConfig)
    feedforward: FeedForwardConfig = field(default_factory=GELUConfig)
    head: HeadConfig = field(default_factory=lambda: ClassesHeadConfig(10, pool="mean"))

    def check(self) -> None:
        super().check()
        self.embed.check()
        self.head.check()
        if self.head.pool == "cls" and not self.class_token:
            raise ValueError("without a class token there is none to classify by; set head.pool = mean")
        if self.statistics and self.head.pool != "mean":
            raise ValueError("statistics are those of all parts; set head.pool = mean")
        if self.attention.pattern().needs_tokens:
            raise ValueError(f"the mask {self.attention.pattern()} follows from tokens, which signals do not have")

    @property
    def context(self) -> int:
        """The length of the longest sequence in training: the parts and the class token."""
        return self.embed.count(self.points) + self.class_token

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> Self:
        if shape is None or len(shape) != 2:
            raise UserError(f"a {self.kind} reads signals, such as sounds and time series; choose another --model")
        return replace(self, points=shape[0], channels=shape[1])

    def with_classes(self, labels: tuple[str, ...], pool: Literal["cls", "mean"] | None = None) -> Self:
        pool = pool or ("cls" if self.class_token else "mean")
        return replace(self, head=ClassesHeadConfig(len(labels), labels, pool=pool))

    def without_positions(self) -> Self:
        return replace(self, position=NoPositionConfig())

    def make(self) -> SignalEncoder:
        return SignalEncoder(self)


class SignalEncoder(ArrayEncoder):
    """Signals [B, T, M] to the outputs of the head: [B, classes], or [B, N, C] without a pool."""

    config: SignalConfig
    blocks: Stack

    def __init__(self, config: SignalConfig):
        super().__init__(config)
        c = config
        self.before = int(c.class_token)
        self.embed = c.embed.build(c.channels, c.width)
        self.embed_class = nn.Embedding(1, c.width) if c.class_token else None
        head_width = c.projection.rotary_width(c.width, c.heads)
        self.position = c.position.build(width=c.width, head_width=head_width, context=c.context, causal=False)
        if self.position.token_width(c.width) != c.width:
            raise UserError("concatenated positions leave no width for signals; set position.concatenate = false")
        self.limit = self.position.limit
        self.positional = self.embed.overlap or not isinstance(c.position, NoPositionConfig)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = c.block.stack(c.build_block(c.attention, self.position) for _ in range(c.layers))
        self.compilable = self.blocks.compilable
        self.norm = c.build_final_norm()
        self.of_deviation = Linear(c.width, c.width, bias=False) if c.statistics else None
        self.transform, outputs = c.head.transform(c.width, c.norm), c.head.outputs(0)
        self.unembed = Linear(c.width, outputs, bias=c.head.bias) if outputs else nn.Identity()  # type: ignore[assignment]
        self.masks = [Full() & c.attention.pattern()]
        self.reset()

    def reset(self) -> None:
        """As a ``ViT``: Xavier's uniform weights, parts of variance 1, positions with half that deviation."""
        initialize(self, nn.init.xavier_uniform_, normal(0.5))
        self.embed.reset()
        if isinstance(self.unembed, Linear):
            self.unembed.init(normal(0.02))
        self.blocks.scale_residual(0.0 if self.config.zero_init else (2 * max(1, self.config.layers)) ** -0.5)

    def features(self, signals: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Features [B, N, C] of the class token, if there is one, and of the parts; ``lengths`` [B]: real points."""
        if lengths is not None:  # what follows a signal must not reach its last part
            signals = self.embed.filled(signals, lengths)
        x = self.embed(signals, lengths)
        if self.embed_class is not None:
            x = torch.cat((self.embed_class.weight.expand(x.shape[0], -1, -1), x), dim=1)
        slots = self.slots(x, signals, *(() if lengths is None else (lengths,)))
        check_length(self.position, slots.length)
        phase = slots.phases(x.device)
        x = self.drop(self.position.embed(x, phase))
        plans = [block.attention.mechanism.plan(self.masks[0], slots, like=x) for block in self.blocks.layers[:1]]
        contexts = [AttentionContext(plan, self.position.rotation(phase)) for plan in plans] * self.config.layers
        return self.norm(self.blocks(x, contexts, recompute=self.checkpointing and self.training))

    def slots(self, x: Tensor, *inputs: Tensor) -> Range | Padded:
        """The places of the class token and the parts; the second of the inputs: points that are no padding, [B]."""
        if len(inputs) < 2:
            return Range(x.shape[1])
        parts = self.config.embed.count(inputs[1]).clamp(min=1)  # a row of padding keeps one part
        return Padded(parts + self.before, x.shape[1])

    def pooled(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The class token, or the mean of the parts, [B, C]; all features if the head takes them.

        Statistics pooling: mean + W deviation (Snyder et al. 2018, sec. 2.2, with one of their two matrices left out).
        """
        pool = self.config.head.pool
        if pool is None:
            return x
        slots = self.slots(x, *inputs)
        filled = slots.filled()[:, self.before :] if isinstance(slots, Padded) and pool == "mean" else None
        x = x if pool == "cls" else x[:, self.before :]
        found = pooled(x, filled, pool)
        if self.of_deviation is None:
            return found
        variance = pooled((x - found[:, None]).square(), filled, pool)
        return found + self.of_deviation((variance + 1e-5).sqrt())

    def head(self, x: Tensor) -> Tensor:
        """Features [..., C] to the outputs of the head."""
        return self.unembed(self.transform(x))

    def inputs_of(self, tokens: Tensor) -> tuple[Tensor]:
        return (self.embed.signals_of(tokens),)

    def places(self, *inputs: Tensor) -> list[str]:
        """The number of each part, from 1 on."""
        count = self.config.embed.count(inputs[0].shape[1])
        return ["class "] * self.before + [f"{number} " for number in range(1, count + 1)]
