"""Object detection as set prediction: a Vision Transformer, and a decoder of queries (Carion et al. 2020, DETR)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from regard.attention import Full, Range, SoftmaxConfig
from regard.config import option
from regard.models.images import ImageEncoder
from regard.models.vit import ViT, ViTConfig
from regard.nn.attention import AttentionContext, CrossAttentionContext
from regard.nn.heads import ClassesHeadConfig, HeadConfig, NoHeadConfig
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.positions.position import Position

BOX = 4  # outputs of a query for its box


@dataclass(frozen=True)
class DetectorConfig(ViTConfig, kind="detector"):
    """Sizes and parts of a detector: a Vision Transformer, and a decoder whose queries attend to the patches."""

    class_token: bool = option(False, "a learned token before the patches, which the queries attend to as well")
    queries: int = option(8, "learned queries: the most objects that are found in an image", least=1)
    decoder_layers: int = option(2, "blocks of the decoder", least=1)
    head: HeadConfig = field(default_factory=lambda: ClassesHeadConfig(10, pool="mean"))

    def check(self) -> None:
        super().check()
        if not isinstance(self.head, ClassesHeadConfig):
            raise ValueError("a detector has a head for classes; set head = classes")

    def with_classes(self, labels: tuple[str, ...], pool: Literal["cls", "mean"] | None = None) -> Self:
        return replace(self, head=ClassesHeadConfig(len(labels), labels, pool="mean"))

    def make(self) -> Detector:
        return Detector(self)


class Detector(ImageEncoder):
    """Images [B, M, Y, X] to [B, Q, K + 1 + 4]: of each query logits of K classes and of none, and a box."""

    config: DetectorConfig
    compilable = False  # the task matches boxes outside of PyTorch

    def __init__(self, config: DetectorConfig):
        super().__init__(config)
        c = config
        sizes = {field.name: getattr(c, field.name) for field in fields(ViTConfig)}
        self.encoder = ViT(ViTConfig(**{**sizes, "head": NoHeadConfig()}))
        self.channels, self.patch, self.before = c.channels, c.patch, self.encoder.before
        self.part = (c.patch, c.patch)
        self.positional, self.masks = self.encoder.positional, [*self.encoder.masks]
        self.embed_queries = nn.Embedding(c.queries, c.width)
        blocks = (c.build_block(SoftmaxConfig(), Position(), SoftmaxConfig()) for _ in range(c.decoder_layers))
        self.decoder = c.block.stack(blocks)
        self.norm = c.build_final_norm()
        self.unembed = Linear(c.width, (c.head.outputs(0) or 0) + 1 + BOX)
        for part in (self.decoder, self.norm):
            initialize(part, nn.init.xavier_uniform_, normal(0.02))
        nn.init.normal_(self.embed_queries.weight)
        self.unembed.init(normal(0.02))
        self.decoder.scale_residual(0.0 if c.zero_init else (3 * c.decoder_layers) ** -0.5)

    @property
    def blocks(self) -> list[nn.Module]:  # type: ignore[override]
        """Every block, the encoder's first."""
        return [*self.encoder.blocks, *self.decoder]

    def features(self, images: Tensor) -> Tensor:
        """Features [B, N, C] of the patches."""
        self.encoder.checkpointing = self.checkpointing
        return self.encoder.features(images)

    def pooled(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The decoder: features of patches [B, N, C] to those of queries [B, Q, C]."""
        count, recompute = self.config.queries, self.checkpointing and self.training
        phase = torch.arange(count, device=x.device)[None]
        block = self.decoder.layers[0]
        assert block.cross is not None
        plan = block.attention.mechanism.plan(Full(), Range(count), like=x)
        across = block.cross.mechanism.plan(Full(), Range(count), Range(x.shape[1]), like=x)
        context = AttentionContext(plan, Position().rotation(phase), cross=CrossAttentionContext(across, x))
        queries = self.embed_queries.weight.expand(x.shape[0], -1, -1)
        return self.norm(self.decoder(queries, [context] * self.config.decoder_layers, recompute=recompute))
