"""The Vision Transformer for clips: a clip is a sequence of tubelets (Arnab et al. 2021, ViViT, model 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from regard.config import option
from regard.errors import UserError
from regard.models.images import random_images
from regard.models.vit import ViT, ViTConfig
from regard.nn.patches import TubeletEmbedding
from regard.nn.positions.grid import NoGridConfig


@dataclass(frozen=True)
class VideoConfig(ViTConfig, kind="video"):
    """Sizes and parts of a Vision Transformer for clips: as for images, with a learned vector for each time."""

    reads = "clips"
    frames: int = option(8, "frames of a clip in training", least=1)
    tubelet: int = option(2, "frames of a tubelet; each tubelet is a patch of so many successive frames", least=1)

    def check(self) -> None:
        super().check()
        if self.frames % self.tubelet:
            raise ValueError(f"{self.frames} frames have no whole number of tubelets of {self.tubelet}")

    @property
    def times(self) -> int:
        """Tubelets after each other in a clip."""
        return self.frames // self.tubelet

    @property
    def context(self) -> int:
        """The length of the sequence in training: the tubelets and the class token."""
        return self.times * self.side**2 + self.class_token

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> Self:
        if shape is None or len(shape) != 4:
            raise UserError("a video model reads clips; choose --data clips, or another --model")
        channels, frames, *sides = shape
        return replace(super().reading(None, (channels, *sides)), frames=frames)

    def build_embedding(self) -> TubeletEmbedding:
        positions = not isinstance(self.position, NoGridConfig)
        return TubeletEmbedding(self.patch, self.tubelet, self.channels, self.width, self.times, positions=positions)

    def make(self) -> Video:
        return Video(self)


class Video(ViT):
    """Clips [B, M, T, Y, X] to logits [B, classes]; without a head, to features [B, N, C]."""

    config: VideoConfig

    def inputs_of(self, tokens: Tensor) -> tuple[Tensor]:
        """Clips of random tubelets, of as many times as divide their number."""
        tubelet, channels = self.config.tubelet, self.channels
        times = math.gcd(self.config.times, tokens.shape[1])
        chunks = random_images(self, tokens.unflatten(1, (times, -1)).flatten(0, 1), channels * tubelet, self.part)
        chunks = chunks.unflatten(1, (channels, tubelet)).unflatten(0, (len(tokens), times))
        return (chunks.transpose(1, 2).flatten(2, 3),)  # [B, M, T, Y, X]

    def places(self, images: Tensor) -> list[str]:
        """The first frame, row and column of each tubelet, from 1 on."""
        first = super().places(images[:, :, 0])
        times = range(1, images.shape[2] + 1, self.config.tubelet)
        return first[: self.before] + [f"{time}: {name}" for time in times for name in first[self.before :]]
