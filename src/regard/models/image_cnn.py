"""A small convolutional network with residual blocks (He et al. 2016), to compare a Vision Transformer with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor, nn

from regard.config import option
from regard.models.images import ImageConfig, ImageEncoder
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.norm import LayerNormConfig, NormConfig
from regard.nn.patches import grid

GROUPS = 8  # of channels that are normalized together, at most


@dataclass(frozen=True)
class ImageCNNConfig(ImageConfig, kind="image-cnn"):
    """Sizes of a convolutional network."""

    layers: int = option(6, "number of residual blocks, of two convolutions of 3 x 3 each", least=1)
    width: int = option(64, "channels of every convolution", least=1)
    patch: int = option(4, "rows and columns of the image that end as one feature: a power of 2", least=1)
    norm: NormConfig = field(default_factory=LayerNormConfig)

    def check(self) -> None:
        super().check()
        if self.patch & (self.patch - 1):
            raise ValueError(f"patch is a power of 2, not {self.patch}")
        if self.image % self.patch:
            raise ValueError(f"an image of {self.image} pixels cannot be halved to a whole number of {self.patch}")

    def pools(self) -> list[int]:
        """By how much each block lowers the resolution first: by 2 until it is that of ``patch``."""
        halvings = self.patch.bit_length() - 1
        first = 2 ** max(1, halvings - self.layers + 1) if halvings else 1
        return [first, *(2 if n < halvings else 1 for n in range(1, self.layers))]

    @property
    def context(self) -> int:
        """The features of an image in training."""
        return (self.image // self.patch) ** 2

    def make(self) -> ImageCNN:
        return ImageCNN(self)


class ResidualBlock(nn.Module):
    """x + f(f(x)), f(x) = convolution(relu(norm(x))) (He et al. 2016b, fig. 4e), after a maximum over squares."""

    def __init__(self, width: int, pool: int):
        super().__init__()
        parts = [
            part
            for _ in range(2)
            for part in (
                nn.GroupNorm(math.gcd(width, GROUPS), width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
            )
        ]
        self.branch = nn.Sequential(*parts)
        self.pool = nn.MaxPool2d(pool) if pool > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(x)
        return x + self.branch(x)


class ImageCNN(ImageEncoder):
    """Images [B, M, Y, X] to logits [B, classes]."""

    config: ImageCNNConfig

    def __init__(self, config: ImageCNNConfig):
        super().__init__(config)
        self.channels, self.part = config.channels, (config.patch, config.patch)
        self.embed = nn.Conv2d(config.channels, config.width, 3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(config.width, pool) for pool in config.pools())
        self.norm = config.norm.build(config.width)
        outputs = config.head.outputs(0)
        self.unembed = Linear(config.width, outputs) if outputs else nn.Identity()  # type: ignore[assignment]
        self.reset()

    def reset(self) -> None:
        """He's normal weights (He et al. 2015, eq. 10); residual branches scaled down with depth."""
        initialize(self, normal(0.02), normal(0.02))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        for block in self.blocks:
            cast(nn.Conv2d, cast(ResidualBlock, block).branch[-1]).weight.data.mul_(self.config.layers**-0.5)

    def features(self, images: Tensor) -> Tensor:
        grid(images, self.channels, self.part[0])
        x = self.embed(images)
        for block in self.blocks:
            x = self.run_block(block, x)
        return self.norm(x.flatten(2).mT)
