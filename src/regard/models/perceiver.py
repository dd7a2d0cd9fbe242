"""The Perceiver: a few learned latents read an array of any length and kind (Jaegle et al. 2021, fig. 1).

Latents attend to the parts of an array, then to each other: the cost is linear in the number of parts. Behind an
encoder with blocks it is Flamingo's resampler, which makes a few tokens of many (Alayrac et al. 2022, sec. 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from torch import Tensor, nn

from regard.attention import AttentionConfig, Full, Range, SoftmaxConfig
from regard.config import option
from regard.errors import UserError
from regard.models.base import ArrayEncoder, ModelConfig
from regard.models.parts import BlocksConfig
from regard.models.vit import ViTConfig
from regard.nn.attention import AttentionContext, CrossAttentionContext
from regard.nn.feedforward import FeedForwardConfig, GELUConfig
from regard.nn.heads import ClassesHeadConfig, HeadConfig, NoHeadConfig, pooled
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.norm import LayerNormConfig, NormConfig
from regard.nn.positions.position import NoRotation, Position


def _embedding() -> ViTConfig:
    return ViTConfig(layers=0, class_token=False, head=NoHeadConfig())


def headless(config: ModelConfig) -> ModelConfig:
    """The same encoder without a head: its features are what another model reads."""
    return replace(config, head=NoHeadConfig()) if "head" in config.__dataclass_fields__ else config


def build_encoder(config: ModelConfig) -> ArrayEncoder:
    """The encoder of a config, without a head."""
    encoder = headless(config).build()
    if not isinstance(encoder, ArrayEncoder):
        raise UserError(f"a {config.kind} encodes no images or other arrays; choose vit, signal or perceiver")
    return encoder


@dataclass(frozen=True)
class PerceiverConfig(BlocksConfig, kind="perceiver"):
    """Sizes and parts of the latents' Transformer, and the encoder whose features they read."""

    generates, vocabulary = False, 0
    encoder: ModelConfig = field(
        default_factory=_embedding,
        metadata={"help": "what embeds the array, such as vit or signal; with 0 layers the latents read plain parts"},
    )
    latents: int = option(16, "learned latents", least=1)
    reads_first: int = option(1, "blocks that read the array; the others have self-attention alone", least=1)
    bias: bool = option(True, "biases in linear layers")
    qk_norm: bool = option(False, "normalize queries and keys per head")
    zero_init: bool = option(False, "initialize residual branches with zero rather than small weights")
    across: AttentionConfig = field(default_factory=SoftmaxConfig, metadata={"help": "attention to the array"})
    norm: NormConfig = field(default_factory=LayerNormConfig)
    feedforward: FeedForwardConfig = field(default_factory=GELUConfig)
    head: HeadConfig = field(default_factory=lambda: ClassesHeadConfig(10, pool="mean"))

    def check(self) -> None:
        super().check()
        for part in (headless(self.encoder), self.head, self.across):
            part.check()
        if self.reads_first > self.layers:
            raise ValueError(f"{self.reads_first} blocks cannot read the array, as there are {self.layers}; lower it")
        if self.encoder.width != self.width:
            raise ValueError(f"the latents have width {self.width}; set encoder.width to it, not {self.encoder.width}")
        if self.head.pool == "cls":
            raise ValueError("no latent stands for the whole array; set head.pool = mean")
        if not all(isinstance(attention.pattern(), Full) for attention in (self.attention, self.across)):
            raise ValueError("latents have no order that a mask could compare; leave the masks out")

    @property
    def reads(self) -> str:  # type: ignore[override]
        """What the encoder reads."""
        return self.encoder.reads

    @property
    def context(self) -> int:  # type: ignore[override]
        """The parts of an array in training."""
        return self.encoder.context

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> Self:
        return replace(self, encoder=self.encoder.reading(None, shape))

    def with_classes(self, labels: tuple[str, ...], pool: Literal["cls", "mean"] | None = None) -> Self:
        return replace(self, head=ClassesHeadConfig(len(labels), labels, pool=pool or "mean"))

    def without_positions(self) -> Self | None:
        encoder = self.encoder.without_positions()
        return encoder and replace(self, encoder=encoder)

    def reduced(self) -> Self:
        smaller = super().reduced()
        return replace(
            smaller,
            encoder=self.encoder.reduced(),
            reads_first=min(self.reads_first, smaller.layers),
            latents=min(8, self.latents),
        )

    def make(self) -> Perceiver:
        return Perceiver(self)


class Perceiver(ArrayEncoder):
    """Arrays to features [B, L, C] of the latents, and what the head makes of them."""

    config: PerceiverConfig
    summarizes = True

    def __init__(self, config: PerceiverConfig):
        super().__init__(config)
        c, encoder = config, build_encoder(config.encoder)
        if encoder.before:
            raise UserError("latents need no token for the whole array; set encoder.class_token = false")
        self.encoder, self.positional, self.limit = encoder, encoder.positional, encoder.limit
        self.fixed_size = encoder.fixed_size
        self.embed_latents = nn.Embedding(c.latents, c.width)
        self.decoder = c.block.stack(
            c.build_block(c.attention, Position(), c.across if i < c.reads_first else None) for i in range(c.layers)
        )
        self.compilable = encoder.compilable and self.decoder.compilable
        self.norm = c.build_final_norm()
        self.transform, outputs = c.head.transform(c.width, c.norm), c.head.outputs(0)
        self.unembed = Linear(c.width, outputs, bias=c.head.bias) if outputs else nn.Identity()  # type: ignore[assignment]
        self.masks = list(dict.fromkeys((*encoder.masks, Full())))
        self.reset()

    def reset(self) -> None:
        """As a ``ViT``; the latents have variance 1. The encoder has initialized itself."""
        for part in (self.decoder, self.norm, self.transform):
            initialize(part, nn.init.xavier_uniform_, normal(0.02))
        nn.init.normal_(self.embed_latents.weight)
        if isinstance(self.unembed, Linear):
            self.unembed.init(normal(0.02))
        self.decoder.scale_residual(0.0 if self.config.zero_init else (3 * self.config.layers) ** -0.5)

    @property
    def blocks(self) -> list[nn.Module]:  # type: ignore[override]
        """Every block, the encoder's first."""
        return [*self.encoder.blocks, *self.decoder]

    def features(self, *inputs: Tensor) -> Tensor:
        """Features [B, L, C]; the latents attend to each other, then to the parts that are no padding."""
        self.encoder.checkpointing = self.checkpointing
        memory = self.encoder.features(*inputs)
        count, block = self.config.latents, self.decoder.layers[0]
        assert block.cross is not None
        plan = block.attention.mechanism.plan(Full(), Range(count), like=memory)
        across = block.cross.mechanism.plan(Full(), Range(count), self.encoder.slots(memory, *inputs), like=memory)
        context = AttentionContext(plan, NoRotation(), cross=CrossAttentionContext(across, memory))
        latents = self.embed_latents.weight.expand(len(memory), -1, -1)
        recompute = self.checkpointing and self.training
        return self.norm(self.decoder(latents, [context] * self.config.layers, recompute=recompute))

    def pooled(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The mean of the latents, [B, C]; all of them without a head."""
        return x if self.config.head.pool is None else pooled(x, None, "mean")

    def head(self, x: Tensor) -> Tensor:
        """Features [..., C] to the outputs of the head."""
        return self.unembed(self.transform(x))

    def inputs_of(self, tokens: Tensor) -> tuple[Tensor, ...]:
        return self.encoder.inputs_of(tokens)

    def places(self, *inputs: Tensor) -> list[str]:
        """The number of each latent, from 1 on."""
        return [f"latent {number} " for number in range(1, self.config.latents + 1)]
