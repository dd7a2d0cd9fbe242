"""An LSTM that reads the rows of an image in both directions, to compare a Vision Transformer with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from torch import Tensor, nn

from regard.config import option
from regard.errors import UserError
from regard.models.images import ImageConfig, ImageEncoder
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.norm import LayerNormConfig, NormConfig
from regard.nn.recurrent import Recurrent


@dataclass(frozen=True)
class ImageLSTMConfig(ImageConfig, kind="image-lstm"):
    """Sizes of an LSTM over rows."""

    layers: int = option(3, "number of residual blocks, of one layer in both directions each", least=1)
    width: int = option(160, "model width; each direction has half of it", least=1)
    norm: NormConfig = field(default_factory=LayerNormConfig)

    def check(self) -> None:
        super().check()
        if self.width % 2:
            raise ValueError(f"width {self.width} cannot be divided between two directions; make it even")

    @property
    def context(self) -> int:
        """The rows of an image in training."""
        return self.image

    def make(self) -> ImageLSTM:
        return ImageLSTM(self)


class RowsBlock(nn.Module):
    """x + lstm(norm(x)), in both directions."""

    def __init__(self, config: ImageLSTMConfig):
        super().__init__()
        self.norm = config.norm.build(config.width)
        self.recurrent = Recurrent("lstm", config.width, config.width // 2, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.recurrent(self.norm(x))[0]


class ImageLSTM(ImageEncoder):
    """Images [B, M, Y, X] to logits [B, classes]."""

    config: ImageLSTMConfig
    whole_rows = True
    compilable = False  # the kernels of whole recurrent layers are opaque to a compiler

    def __init__(self, config: ImageLSTMConfig):
        super().__init__(config)
        self.channels, self.part = config.channels, (1, config.image)
        self.embed = Linear(config.channels * config.image, config.width)
        self.blocks = nn.ModuleList(RowsBlock(config) for _ in range(config.layers))
        self.norm = config.norm.build(config.width)
        outputs = config.head.outputs(0)
        self.unembed = Linear(config.width, outputs) if outputs else nn.Identity()  # type: ignore[assignment]
        self.reset()

    def reset(self) -> None:
        """Features of variance 1 for pixels of variance 1; orthogonal recurrent matrices, open forget gates."""
        initialize(self, normal(0.02), normal(0.02))
        self.embed.init(normal(self.embed.in_features**-0.5))
        for block in self.blocks:
            cast(RowsBlock, block).recurrent.reset_matrices()
            cast(RowsBlock, block).recurrent.reset_biases()

    def features(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != self.channels or images.shape[3] != self.part[1]:
            raise UserError(f"this model reads images of {self.channels} channels and {self.part[1]} columns")
        x = self.embed(images.transpose(1, 2).flatten(2))  # [B, Y, C]
        for block in self.blocks:
            x = self.run_block(block, x)
        return self.norm(x)
