"""EfficientNet-Lite (Tan and Le 2019, table 1, without squeeze and excitation): convolutions with published weights.

Batch normalization is no part of it: the import folds it into the convolutions, whose biases it becomes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import option
from regard.models.images import ImageConfig, ImageEncoder
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.patches import grid

#: Of each stage: kernel, stride, expansion, channels, blocks.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
STEM = 32  # channels of the first convolution
PART = 32  # rows and columns of the image that end as one feature
LEVELS = (2, 4, 6)  # stages whose outputs are the features: the lower ones keep colors and textures


@dataclass(frozen=True)
class EfficientNetConfig(ImageConfig, kind="efficientnet"):
    """Which images an EfficientNet-Lite reads, and how wide it is."""

    resizable = True
    image: int = option(224, "rows and columns of the images in training, in pixels; a multiple of 32")
    multiplier: float = option(1.0, "the channels of every stage, as a multiple of the published ones", above=0, most=8)

    def check(self) -> None:
        super().check()
        if self.image % PART:
            raise ValueError(f"an image of {self.image} pixels is no multiple of {PART}; set --data.size 64 or 128")

    def scaled(self, channels: int) -> int:
        """Channels of a stage: multiples of 8, as in the paper's code."""
        return max(8, round(channels * self.multiplier / 8) * 8)

    @property
    def width(self) -> int:  # type: ignore[override]
        """The channels of all levels together."""
        return sum(self.scaled(STAGES[level][3]) for level in LEVELS)

    @property
    def layers(self) -> int:  # type: ignore[override]
        return sum(stage[4] for stage in STAGES)

    @property
    def context(self) -> int:  # type: ignore[override]
        """The features of an image in training."""
        return (self.image // PART) ** 2

    def reduced(self) -> EfficientNetConfig:
        return replace(super().reduced(), multiplier=min(self.multiplier, 0.25))

    def make(self) -> EfficientNet:
        return EfficientNet(self)


class SameConvolution(nn.Conv2d):
    """A convolution whose output has 1 / stride of the rows and columns, rounded up.

    Padding is TensorFlow's "same": with a stride of 2 an even image has one row more below than above.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(inputs, outputs, kernel, stride, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        stride, sides = self.stride[0], []
        for kernel, size in zip(self.kernel_size[::-1], x.shape[:1:-1], strict=True):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            sides += [total // 2, total - total // 2]
        return super().forward(F.pad(x, sides))


class InvertedBottleneck(nn.Module):
    """1 x 1 to more channels, a convolution in each alone, 1 x 1 to fewer (Sandler et al. 2018, fig. 4d)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        inner = inputs * expansion
        self.expand = SameConvolution(inputs, inner, 1) if expansion > 1 else None
        self.depthwise = SameConvolution(inner, inner, kernel, stride, groups=inner)
        self.project = SameConvolution(inner, outputs, 1)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else F.relu6(self.expand(x))
        y = self.project(F.relu6(self.depthwise(y)))
        return x + y if self.residual else y


class EfficientNet(ImageEncoder):
    """Images [B, 3, Y, X] to features [B, N, C] of the coarsest grid; finer levels are means over its parts."""

    config: EfficientNetConfig

    def __init__(self, config: EfficientNetConfig):
        super().__init__(config)
        self.channels, self.part = config.channels, (PART, PART)
        before = config.scaled(STEM)
        self.embed = SameConvolution(config.channels, before, 3, stride=2)
        self.blocks, self.ends = nn.ModuleList(), []
        for number, (kernel, stride, expansion, channels, count) in enumerate(STAGES):
            for first in (True, *[False] * (count - 1)):
                after = config.scaled(channels)
                self.blocks.append(InvertedBottleneck(before, after, kernel, stride if first else 1, expansion))
                before = after
            if number in LEVELS:
                self.ends.append(len(self.blocks) - 1)
        self.norm = nn.Identity()
        outputs = config.head.outputs(0)
        self.unembed = Linear(config.width, outputs) if outputs else nn.Identity()  # type: ignore[assignment]
        self.reset()

    def reset(self) -> None:
        """He's normal weights (He et al. 2015, eq. 10), residual branches scaled down with depth."""
        initialize(self, normal(0.02), normal(0.02))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(cast(Tensor, module.bias))
        for block in self.blocks:
            assert isinstance(block, InvertedBottleneck)
            if block.residual:
                block.project.weight.data.mul_(len(self.blocks) ** -0.5)

    def features(self, images: Tensor) -> Tensor:
        grid(images, self.channels, PART)
        # Depthwise convolutions on a CPU take half the time with the channels last.
        x, levels = F.relu6(self.embed(images.contiguous(memory_format=torch.channels_last))), []
        for number, block in enumerate(self.blocks):
            x = self.run_block(block, x)
            if number in self.ends:
                levels.append(x)
        pooled = [F.avg_pool2d(level, level.shape[-1] // x.shape[-1]) for level in levels]
        return torch.cat([F.layer_norm(level.flatten(2).mT, (level.shape[1],)) for level in pooled], dim=-1)
