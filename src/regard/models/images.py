"""What models of images have in common: the contract of an ``ArrayEncoder`` whose parts are pieces of an image."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

from regard.config import option
from regard.errors import UserError
from regard.models.base import ArrayEncoder, Model, ModelConfig
from regard.nn.heads import ClassesHeadConfig, HeadConfig, NoHeadConfig, PixelsHeadConfig, pooled

PARTS = 64  # different ones, for tests
SEED = 11


@dataclass(frozen=True)
class ImageConfig(ModelConfig):
    """The options of a model of images."""

    generates, reads, vocabulary = False, "images", 0
    image: int = option(32, "rows and columns of the images in training, in pixels", least=1)
    channels: int = option(3, "channels of the images: 1 gray, 3 color", least=1)
    head: HeadConfig = field(default_factory=lambda: ClassesHeadConfig(10, pool="mean"))

    @property
    def tokens_before(self) -> int:
        """Features before those of the parts. Default: none."""
        return 0

    def check(self) -> None:
        super().check()
        if not isinstance(self.head, ClassesHeadConfig | NoHeadConfig | PixelsHeadConfig):
            raise ValueError(f"the head of an image model is classes, pixels or none, not {self.head.kind}")
        self.head.check()
        if self.head.pool == "cls" and not self.tokens_before:
            raise ValueError("without a class token there is none to classify by; set head.pool = mean")

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> Self:
        if shape is None or len(shape) != 3:
            raise UserError(f"a {self.kind} reads images; choose --data images, or another --model")
        channels, rows, columns = shape
        if rows != columns:
            raise UserError(f"the images have {rows} x {columns} pixels; give --data.size, to make them squares")
        return replace(self, channels=channels, image=rows)

    def with_classes(self, labels: tuple[str, ...], pool: Literal["cls", "mean"] | None = None) -> Self:
        pool = pool or ("cls" if self.tokens_before else "mean")
        return replace(self, head=ClassesHeadConfig(len(labels), labels, pool=pool))


class ImageEncoder(ArrayEncoder):
    """Images [B, M, Y, X] (M channels, Y rows, X columns) to features [B, N, C], each from the whole image."""

    channels: int
    part: tuple[int, int]  # rows and columns of what one feature stands for, in pixels
    whole_rows = False  # such a part is as wide as the image

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Features [B, N, C]: those of ``before`` tokens, then of the parts row by row."""

    def pooled(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The class token, or the mean of the parts, [B, C]; all features for a model without a head."""
        assert isinstance(self.config, ImageConfig)
        head = self.config.head
        return x if head.pool is None else pooled(x if head.pool == "cls" else x[:, self.before :], None, head.pool)

    def inputs_of(self, tokens: Tensor) -> tuple[Tensor]:
        """Images of random parts; the grid is as square as N allows."""
        return (random_images(self, tokens, self.channels, self.part, whole_rows=self.whole_rows),)

    def places(self, images: Tensor) -> list[str]:
        """The row and column of each part, from 1 on."""
        rows, columns = (side // own for side, own in zip(images.shape[2:], self.part, strict=True))
        parts = [f"{row},{column} " for row in range(1, rows + 1) for column in range(1, columns + 1)]
        return ["class "] * self.before + parts


def random_images(
    model: Model, tokens: Tensor, channels: int, part: tuple[int, int], *, whole_rows: bool = False
) -> Tensor:
    """Images [B, M, Y, X] of random parts, equal ones for equal ``tokens`` [B, N], like the weights of ``model``."""
    weight = next(weight for weight in model.parameters() if weight.is_floating_point())
    generator = torch.Generator().manual_seed(SEED)
    book = torch.randn(PARTS, channels, *part, generator=generator).to(weight)
    count = tokens.shape[1]
    rows = count if whole_rows else max(n for n in range(1, math.isqrt(count) + 1) if count % n == 0)
    tiles = book[tokens % PARTS].unflatten(1, (rows, -1))  # [B, rows, columns, M, ...]
    return tiles.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
