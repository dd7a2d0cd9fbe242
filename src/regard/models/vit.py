"""The Vision Transformer: an image is a sequence of patches (Dosovitskiy et al. 2021, fig. 1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from regard.attention import AnySlots, Bias, Full, Range, Slots
from regard.config import option
from regard.models.images import ImageConfig, ImageEncoder
from regard.models.parts import BlocksConfig
from regard.nn.attention import AttentionContext
from regard.nn.blocks.block import Stack
from regard.nn.feedforward import FeedForwardConfig, GELUConfig
from regard.nn.heads import ClassesHeadConfig, HeadConfig
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.norm import LayerNormConfig, NormConfig
from regard.nn.patches import PatchEmbedding
from regard.nn.positions.grid import GridLearnedConfig, GridPositionConfig, NoGridConfig, patches
from regard.nn.positions.position import Position, Rotation


@dataclass(frozen=True)
class ViTConfig(BlocksConfig, ImageConfig, kind="vit"):
    """Sizes and parts of a Vision Transformer. The defaults are the paper's parts at a size for small images."""

    fewest_layers = 0
    patch: int = option(4, "rows and columns of a patch, in pixels", least=1)
    class_token: bool = option(True, "a learned token before the patches, whose features stand for the image")
    bias: bool = option(True, "biases in linear layers")
    qk_norm: bool = option(False, "normalize queries and keys per head")
    zero_init: bool = option(False, "initialize residual branches with zero rather than small weights")
    norm: NormConfig = field(default_factory=lambda: LayerNormConfig(eps=1e-6))
    position: GridPositionConfig = field(default_factory=GridLearnedConfig)
    feedforward: FeedForwardConfig = field(default_factory=GELUConfig)
    head: HeadConfig = field(default_factory=lambda: ClassesHeadConfig(10))

    def check(self) -> None:
        super().check()
        if self.image % self.patch:
            raise ValueError(f"an image of {self.image} pixels has no whole number of patches of {self.patch}")
        if self.attention.pattern().needs_tokens:
            raise ValueError(f"the mask {self.attention.pattern()} follows from tokens, which images do not have")

    @property
    def tokens_before(self) -> int:
        return int(self.class_token)

    @property
    def side(self) -> int:
        """Patches in a row and in a column of an image in training."""
        return self.image // self.patch

    @property
    def context(self) -> int:
        """The length of the sequence in training: the patches and the class token."""
        return self.side**2 + self.class_token

    def without_positions(self) -> Self:
        return replace(self, position=NoGridConfig())

    def build_embedding(self) -> PatchEmbedding:
        """The layer that embeds patches."""
        return PatchEmbedding(self.patch, self.channels, self.width)

    def make(self) -> ViT:
        return ViT(self)


class ViT(ImageEncoder):
    """Images [B, M, Y, X] to logits [B, classes]; without a head, to features [B, N, C]."""

    config: ViTConfig
    blocks: Stack

    def __init__(self, config: ViTConfig):
        super().__init__(config)
        c = config
        self.channels, self.part, self.before = c.channels, (c.patch, c.patch), c.tokens_before
        self.grid = (c.side, c.side)
        self.embed = c.build_embedding()
        self.embed_class = nn.Embedding(1, c.width) if c.class_token else None
        head_width = c.projection.rotary_width(c.width, c.heads)
        self.position = c.position.build(width=c.width, head_width=head_width, grid=self.grid, before=self.before)
        self.positional = not isinstance(c.position, NoGridConfig)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = c.block.stack(c.build_block(c.attention, self.position) for _ in range(c.layers))
        self.compilable = self.blocks.compilable
        self.norm = c.build_final_norm()
        self.transform, outputs = c.head.transform(c.width, c.norm), c.head.outputs(0)
        self.unembed = Linear(c.width, outputs, bias=c.head.bias) if outputs else nn.Identity()  # type: ignore[assignment]
        self.masks = [Full() & c.attention.pattern()]
        self.reset()

    def reset(self) -> None:
        """Xavier's uniform weights, as in the paper's code; residual branches scaled down with depth, or zero.

        Patches start with variance 1, positions and the class token with half that deviation: with 0.02, as in the
        paper's code, attention begins as a mean over a set of patches, and small models learn more slowly.
        """
        initialize(self, nn.init.xavier_uniform_, normal(0.5))
        self.embed.reset()
        for module in self.modules():
            if isinstance(module, Bias):
                module.init(normal(0.02))
        if isinstance(self.unembed, Linear):
            self.unembed.init(normal(0.02))
        self.blocks.scale_residual(0.0 if self.config.zero_init else (2 * max(1, self.config.layers)) ** -0.5)

    def features(self, images: Tensor) -> Tensor:
        """Equations 1 to 4: embedded patches after the class token, with positions, through the blocks and a norm.

        Images may have another resolution than in training: the positions are those of the same grid.
        """
        x, slots = self.embedded(images)
        biased = type(self.position).bias is not Position.bias
        # Only a bias compares the places of patches; without one the sequence is a plain range, which is faster.
        return self.encoded(x, slots if biased else Range(slots.length), self.position.rotation(slots.phase))

    def embedded(self, images: Tensor) -> tuple[Tensor, Slots]:
        """Equation 1: the class token and the patches with their positions, [B, N, C], and their slots."""
        trained = None if self.position.whole else self.grid
        slots = patches(*self.embed.grid(images), of=trained, before=self.before, device=images.device)
        x = self.embed(images)
        if self.embed_class is not None:
            x = torch.cat((self.embed_class.weight.expand(x.shape[0], -1, -1), x), dim=1)
        return self.drop(self.position.embed(x, slots.phase)), slots

    def encoded(self, x: Tensor, slots: AnySlots, rotation: Rotation) -> Tensor:
        """Equations 2 to 4: embedded parts [B, N, C] through the blocks, if there are any, and a norm."""
        plans = [block.attention.mechanism.plan(self.masks[0], slots, like=x) for block in self.blocks.layers[:1]]
        contexts = [AttentionContext(plan, rotation) for plan in plans] * self.config.layers
        return self.norm(self.blocks(x, contexts, recompute=self.checkpointing and self.training))

    def head(self, x: Tensor) -> Tensor:
        """Features [..., C] to logits [..., classes]."""
        return self.unembed(self.transform(x))
