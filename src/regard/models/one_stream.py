"""One stream: the patches of an image and the tokens of a text in one Transformer (Kim et al. 2021, ViLT, fig. 3).

Each patch and each token attends to all of both, where two towers meet in a dot product only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from regard.attention import Padded
from regard.config import option
from regard.models.vit import ViT, ViTConfig
from regard.nn.heads import ClassesHeadConfig, HeadConfig
from regard.nn.init import normal
from regard.nn.positions.grid import GridRelativeConfig, GridRotaryConfig

MATCH = ("another", "match")  # the classes of a pair


@dataclass(frozen=True)
class OneStreamConfig(ViTConfig, kind="one-stream"):
    """A Vision Transformer that reads the tokens of a text after the patches of an image."""

    vocabulary: int = option(64, "size of the vocabulary", least=1)
    tokens: int = option(24, "longest text, in tokens", least=1)
    head: HeadConfig = field(default_factory=lambda: ClassesHeadConfig(len(MATCH), MATCH))

    def check(self) -> None:
        super().check()
        if isinstance(self.position, GridRotaryConfig | GridRelativeConfig):
            raise ValueError("tokens have no row and column to compare; set position = learned or sinusoidal")

    @property
    def context(self) -> int:
        """The parts of an image and of a text together."""
        return super().context + self.tokens

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> Self:
        return replace(super().reading(None, shape), vocabulary=vocabulary or self.vocabulary)

    def make(self) -> OneStream:
        return OneStream(self)


class OneStream(ViT):
    """Images [B, M, Y, X], tokens [B, T] and lengths [B] to logits [B, classes]; an image alone is as in a ``ViT``."""

    config: OneStreamConfig

    def __init__(self, config: OneStreamConfig):
        super().__init__(config)
        self.embed_text = nn.Embedding(config.vocabulary, config.width)
        self.embed_place = nn.Embedding(config.tokens, config.width)  # of a token; unlike those of patches, so no types
        for table in (self.embed_text, self.embed_place):
            normal(0.5)(table.weight)

    def features(self, images: Tensor, tokens: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """Features [B, N + T, C] of the class token, the patches and the tokens; of an image alone [B, N, C]."""
        if tokens is None or lengths is None:
            return super().features(images)
        x, slots = self.embedded(images)
        text = self.embed_text(tokens) + self.embed_place.weight[: tokens.shape[1]]
        count = x.shape[1] + tokens.shape[1]  # padding comes last, so image and text are one padded row
        both = Padded(x.shape[1] + lengths, count)
        return self.encoded(torch.cat((x, self.drop(text)), dim=1), both, self.position.rotation(slots.phase))

    def pooled(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The class token, or the mean of the patches, [B, C]; all features for a model without a head."""
        return super().pooled(x[:, : x.shape[1] - inputs[1].shape[1]] if len(inputs) > 1 else x, *inputs)

    def inputs_of(self, tokens: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """The first parts are patches of an image, the others tokens of a text: up to half of them."""
        count = min(tokens.shape[1] // 2, self.config.tokens)
        images, words = tokens.split([tokens.shape[1] - count, count], dim=1)
        return *super().inputs_of(images), words % self.config.vocabulary, torch.full_like(tokens[:, 0], count)

    def places(self, images: Tensor, *text: Tensor) -> list[str]:
        """The row and column of each patch, then the number of each token, from 1 on."""
        return super().places(images) + [f"token {number} " for number in range(1, text[0].shape[1] + 1 if text else 1)]
