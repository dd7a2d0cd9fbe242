"""Text to image and back by one GPT over tokens of captions and of images (Ramesh et al. 2021, DALL-E, sec. 2).

An autoencoder turns an image into codes and back (van den Oord et al. 2017): one for the color of each region, a square
of patches, then one for the brightness of each patch. The GPT reads captions and codes as one vocabulary: it continues
a caption with the codes of an image, and the codes of an image with a caption.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import option
from regard.errors import UserError
from regard.models.gpt import GPT, GPTConfig
from regard.nn.codebook import Codebook
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.norm import LayerNorm
from regard.nn.patches import cut, joined
from regard.nn.positions.position import LearnedPositionConfig, PositionConfig

DARK = 1e-3  # the brightness below which a region has no color


@dataclass(frozen=True)
class TextToImageConfig(GPTConfig, kind="text-to-image"):
    """Sizes and parts of the GPT, and of the autoencoder of images.

    The vocabulary is that of both: words, then codes of colors, then codes of brightness.
    """

    reads = "scenes"
    vocabulary: int = option(295, "words of captions, codes of colors and codes of brightness")
    context: int = option(48, "longest sequence: the tokens of a caption and the codes of an image")
    position: PositionConfig = field(default_factory=LearnedPositionConfig)
    image: int = option(24, "rows and columns of the images, in pixels", least=1)
    channels: int = option(3, "channels of the images: 1 gray, 3 color", least=1)
    patch: int = option(4, "rows and columns of a patch, in pixels; the brightness of each becomes a code", least=1)
    region: int = option(3, "rows and columns of a region, in patches; the color of each becomes a code", least=1)
    codes: int = option(256, "codes of the brightness of patches, the last of the vocabulary", least=1)
    colors: int = option(8, "codes of the colors of regions, before them", least=1)
    code_width: int = option(16, "width of the vectors that are quantized", least=1)
    coder_width: int = option(128, "width of the hidden layers of the autoencoder", least=1)

    def check(self) -> None:
        super().check()
        side = self.patch * self.region
        if self.image % side:
            raise ValueError(f"an image of {self.image} pixels has no whole number of regions of {side}")
        if self.words < 1:
            codes = self.codes + self.colors
            raise ValueError(f"a vocabulary of {self.vocabulary} has no words beside {codes} codes; lower codes")
        if self.context <= self.length:
            raise ValueError(f"a context of {self.context} has no room for a caption beside {self.length} codes")

    @property
    def words(self) -> int:
        """Token ids of captions; those of codes follow."""
        return self.vocabulary - self.colors - self.codes

    @property
    def regions(self) -> int:
        """Codes of the colors of an image."""
        return (self.side // self.region) ** 2

    @property
    def length(self) -> int:
        """Codes of an image: those of colors, then those of brightness."""
        return self.regions + self.side**2

    @property
    def tokenized(self) -> bool:
        return False  # the words of captions are those of a grammar

    @property
    def side(self) -> int:
        """Patches in a row and in a column of an image."""
        return self.image // self.patch

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> Self:
        if vocabulary is None or shape is None or len(shape) != 3:
            raise UserError("a text-to-image model learns from captions and images; choose --data scenes")
        return replace(self, vocabulary=vocabulary + self.colors + self.codes, channels=shape[0], image=shape[1])

    def make(self) -> TextToImage:
        return TextToImage(self)


class Reconstruction(NamedTuple):
    """Images after the autoencoder."""

    images: Tensor  # [B, M, Y, X]
    codes: Tensor  # [B, N] int64, from 0 on: of colors, then of brightness
    loss: Tensor  # [B], of the codebooks: the sum of their means


class VectorCoder(nn.Module):
    """Two layers, a norm and a codebook: vectors to codes."""

    def __init__(self, inputs: int, codes: int, config: TextToImageConfig):
        super().__init__()
        self.expand, self.narrow = Linear(inputs, config.coder_width), Linear(config.coder_width, config.code_width)
        self.norm = LayerNorm(config.code_width)  # codes have to follow only where vectors point
        self.book = Codebook(codes, config.code_width)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors [B, N, I] to the vectors that are quantized, [B, N, D]."""
        return self.norm(self.narrow(F.gelu(self.expand(x))))


class ImageCoder(nn.Module):
    """An autoencoder that turns the color of each region and the brightness of each patch into a code.

    Apart, because a form in a new color then has the codes of that form and of that color, which are known; and colors
    for whole regions, as in JPEG (chroma subsampling), because they are few. Each vector is coded by itself: with
    attention between patches, or with positions, equal ones would have different codes.
    """

    def __init__(self, config: TextToImageConfig):
        super().__init__()
        self.config, hidden, pixels = config, config.coder_width, config.patch**2
        self.colors = VectorCoder(config.channels, config.colors, config)
        self.forms = VectorCoder(pixels, config.codes, config)
        self.widen = Linear(2 * config.code_width, hidden)
        self.pixels = Linear(hidden, config.channels * pixels)
        initialize(self, nn.init.xavier_uniform_, normal(1.0))

    def forward(self, images: Tensor) -> Reconstruction:
        """Images [B, M, Y, X] through the codes and back."""
        color, form = self._vectors(images)
        colors, forms = self.colors.book(color), self.forms.book(form)
        codes = torch.cat((colors.codes, forms.codes + self.config.colors), dim=1)
        loss = colors.loss.mean(1) + forms.loss.mean(1)
        return Reconstruction(self._images(colors.vectors, forms.vectors), codes, loss)

    def encode(self, images: Tensor) -> Tensor:
        """The codes of images, [B, N]."""
        color, form = self._vectors(images)
        return torch.cat((self.colors.book.nearest(color), self.forms.book.nearest(form) + self.config.colors), dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """The images of codes [B, N]. A code of the wrong kind stands for the first one of the right kind."""
        colors, forms = codes.tensor_split((self.config.regions,), dim=1)
        colors, forms = colors.where(colors < self.config.colors, 0), (forms - self.config.colors).clamp(min=0)
        return self._images(self.colors.book.table(colors), self.forms.book.table(forms))

    def _vectors(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What is quantized: colors of regions relative to their brightness, and the brightness of patches."""
        light = (images + 1) / 2
        brightness = light.amax(1, keepdim=True)  # the value of HSV, which has no color
        side = self.config.patch * self.config.region
        ink = (
            F.avg_pool2d(torch.cat((light, brightness), dim=1), side).flatten(2).transpose(1, 2)
        )  # [B, regions, M + 1]
        return self.colors(ink[..., :-1] / (ink[..., -1:] + DARK)), self.forms(cut(brightness, self.config.patch))

    def _images(self, colors: Tensor, forms: Tensor) -> Tensor:
        """The images of vectors of regions and of patches."""
        side, size = self.config.side, self.config.region
        grid = colors.unflatten(1, (side // size, -1))  # [B, rows, columns, D]
        colors = grid.repeat_interleave(size, 1).repeat_interleave(size, 2).flatten(1, 2)
        flat = self.pixels(F.gelu(self.widen(torch.cat((colors, forms), dim=-1))))
        return joined(flat, side, self.config.channels)


class TextToImage(GPT):
    """Tokens [B, N] of captions and codes to logits [B, N, V]; ``coder`` is the autoencoder of images."""

    config: TextToImageConfig
    separate = ("coder",)

    def __init__(self, config: TextToImageConfig):
        super().__init__(config)
        self.coder = ImageCoder(config)
        self.compilable = False  # which codes are dead, and so are moved, depends on the data

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        return [*super().forward_methods(), (self.coder, "encode"), (self.coder, "decode")]
