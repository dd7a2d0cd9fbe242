"""Text to image and back by one GPT over tokens of captions and of images (Ramesh et al. 2021, DALL-E, sec. 2).

An autoencoder turns an image into a code for each patch and back (van den Oord et al. 2017). The GPT reads captions and
codes as one vocabulary: it continues a caption with the codes of an image, and the codes of an image with a caption.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import option
from regard.errors import UserError
from regard.models.checks import check_sizes
from regard.models.gpt import GPT, GPTConfig
from regard.nn.codebook import Codebook
from regard.nn.init import initialize, normal
from regard.nn.linear import Linear
from regard.nn.norm import LayerNorm
from regard.nn.patches import cut, joined


@dataclass(frozen=True)
class TextToImageConfig(GPTConfig, kind="text-to-image"):
    """Sizes and parts of the GPT, and of the autoencoder of images. The vocabulary is that of both, codes last."""

    reads = "scenes"
    vocabulary: int = option(287, "words of captions and codes of patches")
    context: int = option(44, "longest sequence: the tokens of a caption and the codes of an image")
    image: int = option(24, "rows and columns of the images, in pixels")
    channels: int = option(3, "channels of the images: 1 gray, 3 color")
    patch: int = option(4, "rows and columns of a patch, in pixels; each patch becomes a code")
    codes: int = option(256, "codes of patches, the last of the vocabulary")
    code_width: int = option(16, "width of the vectors that are quantized")
    coder_width: int = option(128, "width of the hidden layers of the autoencoder")

    def check(self) -> None:
        super().check()
        check_sizes(self, "image", "channels", "patch", "codes", "code_width", "coder_width")
        if self.image % self.patch:
            raise ValueError(f"an image of {self.image} pixels has no whole number of patches of {self.patch}")
        if self.words < 1:
            raise ValueError(f"a vocabulary of {self.vocabulary} has no words beside {self.codes} codes; lower codes")
        if self.context <= self.patches:
            raise ValueError(f"a context of {self.context} has no room for a caption beside {self.patches} codes")

    @property
    def words(self) -> int:
        """Token ids of captions; those of codes follow."""
        return self.vocabulary - self.codes

    @property
    def patches(self) -> int:
        """Codes of an image."""
        return self.side**2

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
        return replace(self, vocabulary=vocabulary + self.codes, channels=shape[0], image=shape[1])

    def make(self) -> TextToImage:
        return TextToImage(self)


class Reconstruction(NamedTuple):
    """Images after the autoencoder."""

    images: Tensor  # [B, M, Y, X]
    codes: Tensor  # [B, N] int64, from 0 on
    loss: Tensor  # [B, N], of the codebook


class ImageCoder(nn.Module):
    """An autoencoder of images that turns each patch into a code, by two layers in either direction.

    Patches are coded one by one: with attention between them, or with positions, equal patches would have different
    codes, and the codebook would have to hold all of these.
    """

    def __init__(self, config: TextToImageConfig):
        super().__init__()
        self.channels, self.patch, self.columns = config.channels, config.patch, config.side
        pixels, hidden = config.channels * config.patch**2, config.coder_width
        self.expand, self.narrow = Linear(pixels, hidden), Linear(hidden, config.code_width)
        self.norm = LayerNorm(config.code_width)  # codes have to follow only where vectors point
        self.book = Codebook(config.codes, config.code_width)
        self.widen, self.pixels = Linear(config.code_width, hidden), Linear(hidden, pixels)
        initialize(self, nn.init.xavier_uniform_, normal(1.0))

    def forward(self, images: Tensor) -> Reconstruction:
        """Images [B, M, Y, X] through the codes and back."""
        found = self.book(self._vectors(images))
        return Reconstruction(self._images(found.vectors), found.codes, found.loss)

    def encode(self, images: Tensor) -> Tensor:
        """The codes of images, [B, N]."""
        return self.book.nearest(self._vectors(images))

    def decode(self, codes: Tensor) -> Tensor:
        """The images of codes [B, N]."""
        return self._images(self.book.table(codes))

    def _vectors(self, images: Tensor) -> Tensor:
        return self.norm(self.narrow(F.gelu(self.expand(cut(images, self.patch)))))

    def _images(self, vectors: Tensor) -> Tensor:
        return joined(self.pixels(F.gelu(self.widen(vectors))), self.columns, self.channels)


class TextToImage(GPT):
    """Tokens [B, N] of captions and codes to logits [B, N, V]; ``coder`` is the autoencoder of images."""

    config: TextToImageConfig
    separate = ("coder",)
    compilable = False  # which codes are dead, and so are moved, depends on the data

    def __init__(self, config: TextToImageConfig):
        super().__init__(config)
        self.coder = ImageCoder(config)

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        return [*super().forward_methods(), (self.coder, "encode"), (self.coder, "decode")]
