"""Text to image and back by one GPT over tokens of captions and of images (Ramesh et al. 2021, DALL-E, sec. 2).

An autoencoder turns an image into a code for each patch and back (van den Oord et al. 2017). The GPT reads captions and
codes as one vocabulary: it continues a caption with the codes of an image, and the codes of an image with a caption.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from torch import Tensor, nn

from regard.config import option
from regard.errors import UserError
from regard.models.checks import check_sizes
from regard.models.gpt import GPT, GPTConfig
from regard.models.vit import ViT, ViTConfig
from regard.nn.codebook import Codebook
from regard.nn.heads import NoHeadConfig
from regard.nn.linear import Linear
from regard.nn.patches import joined


@dataclass(frozen=True)
class TextToImageConfig(GPTConfig, kind="text-to-image"):
    """Sizes and parts of the GPT, and of the autoencoder of images. The vocabulary is that of both, codes last."""

    reads = "scenes"
    vocabulary: int = option(543, "words of captions and codes of patches")
    context: int = option(44, "longest sequence: the tokens of a caption and the codes of an image")
    image: int = option(24, "rows and columns of the images, in pixels")
    channels: int = option(3, "channels of the images: 1 gray, 3 color")
    patch: int = option(4, "rows and columns of a patch, in pixels; each patch becomes a code")
    codes: int = option(512, "codes of patches, the last of the vocabulary")
    code_width: int = option(16, "width of the vectors that are quantized")
    coder_layers: int = option(2, "blocks of the encoder, and of the decoder, of images")
    coder_width: int = option(64, "width of both")
    coder_heads: int = option(4, "heads of both")

    def check(self) -> None:
        super().check()
        check_sizes(self, "image", "channels", "patch", "codes", "code_width")
        self.coder.check()
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
        return self.coder.side**2

    @property
    def coder(self) -> ViTConfig:
        """The encoder of images."""
        return ViTConfig(
            image=self.image,
            channels=self.channels,
            patch=self.patch,
            layers=self.coder_layers,
            width=self.coder_width,
            heads=self.coder_heads,
            class_token=False,
            head=NoHeadConfig(),
        )

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
    """An autoencoder of images with a code for each patch; encoder and decoder are Vision Transformers."""

    def __init__(self, config: TextToImageConfig):
        super().__init__()
        coder = config.coder
        self.side, self.channels = coder.side, coder.channels
        self.encoder = ViT(coder)
        self.narrow = Linear(coder.width, config.code_width)
        self.book = Codebook(config.codes, config.code_width)
        self.decoder = ViT(replace(coder, image=coder.side, channels=config.code_width, patch=1))
        self.pixels = Linear(coder.width, coder.channels * coder.patch**2)
        for linear in (self.narrow, self.pixels):
            linear.init(nn.init.xavier_uniform_)

    def forward(self, images: Tensor) -> Reconstruction:
        """Images [B, M, Y, X] through the codes and back."""
        found = self.book(self.narrow(self.encoder.features(images)))
        return Reconstruction(self._images(found.vectors), found.codes, found.loss)

    def encode(self, images: Tensor) -> Tensor:
        """The codes of images, [B, N]."""
        return self.book.nearest(self.narrow(self.encoder.features(images)))

    def decode(self, codes: Tensor) -> Tensor:
        """The images of codes [B, N]."""
        return self._images(self.book.table(codes))

    def _images(self, vectors: Tensor) -> Tensor:
        grid = vectors.transpose(1, 2).unflatten(2, (self.side, self.side))  # an image whose pixels are the patches
        return joined(self.pixels(self.decoder.features(grid)), self.side, self.channels)


class TextToImage(GPT):
    """Tokens [B, N] of captions and codes to logits [B, N, V]; ``coder`` is the autoencoder of images."""

    config: TextToImageConfig
    separate = ("coder",)

    def __init__(self, config: TextToImageConfig):
        super().__init__(config)
        self.coder = ImageCoder(config)

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        return [*super().forward_methods(), (self.coder, "encode"), (self.coder, "decode")]
