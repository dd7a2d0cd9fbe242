"""Two towers: an image and a text as vectors of one space (CLIP: Radford et al. 2021, fig. 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import Padded
from regard.config import option
from regard.models.base import ArrayEncoder, Encoder, ModelConfig, PairEncoder
from regard.models.encoder import EncoderConfig
from regard.models.vit import ViTConfig
from regard.nn.heads import NoHeadConfig, pooled
from regard.nn.linear import Linear

HOTTEST = math.log(100)  # of the learned scale, as in the paper (sec. 2.5)


def _text_tower() -> EncoderConfig:
    return EncoderConfig(context=32, layers=2, head=NoHeadConfig())


@dataclass(frozen=True)
class TwoTowersConfig(ModelConfig, kind="two-towers"):
    """An encoder of images or other arrays, an encoder of texts, and a linear map of each into one space."""

    generates = False
    width: int = option(128, "width of the space that both share", least=1)
    image: ModelConfig = field(
        default_factory=lambda: ViTConfig(class_token=False, head=NoHeadConfig()),
        metadata={"help": "the encoder of images"},
    )
    text: ModelConfig = field(default_factory=_text_tower, metadata={"help": "the encoder of texts"})
    scale: float = option(
        14.3, "what cosines are multiplied by at first, the inverse of a temperature; it is learned", least=1, most=100
    )

    def check(self) -> None:
        super().check()
        for tower in (self.image, self.text):
            tower.check()
        if self.image.reads == "text" or self.text.reads != "text" or self.text.generates:
            raise ValueError("two towers are an encoder of images, such as vit, and one of texts, such as encoder")

    @property
    def reads(self) -> str:  # type: ignore[override]
        """What the first tower reads."""
        return self.image.reads

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        """The token ids of the text tower."""
        return self.text.vocabulary

    @property
    def layers(self) -> int:  # type: ignore[override]
        """Those of the deeper tower."""
        return max(self.image.layers, self.text.layers)

    @property
    def context(self) -> int:  # type: ignore[override]
        """The longest sequence of the one tower and of the other, together."""
        return self.image.context + self.text.context

    @property
    def resizable(self) -> bool:  # type: ignore[override]
        return self.image.resizable

    def with_dropout(self, dropout: float) -> Self:
        return replace(self, image=self.image.with_dropout(dropout), text=self.text.with_dropout(dropout))

    def with_layers(self, layers: int) -> Self:
        return replace(self, image=self.image.with_layers(layers), text=self.text.with_layers(layers))

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> Self:
        return replace(self, image=self.image.reading(None, shape), text=self.text.reading(vocabulary, None))

    def reduced(self) -> Self:
        return replace(super().reduced(), image=self.image.reduced(), text=self.text.reduced())

    def make(self) -> TwoTowers:
        return TwoTowers(self)


class TwoTowers(PairEncoder):
    """Images and texts to vectors [B, 2, D] whose dot products are the scores of the contrastive loss."""

    config: TwoTowersConfig

    def __init__(self, config: TwoTowersConfig):
        super().__init__(config)
        image, text = config.image.build(), config.text.build()
        if not isinstance(image, ArrayEncoder) or not isinstance(text, Encoder):
            raise TypeError("two towers are an ArrayEncoder and an Encoder")
        self.image, self.text, self.before = image, text, image.before
        self.blocks = [*image.blocks, *text.blocks]
        self.masks = [*image.masks, *text.masks]
        self.compilable = image.compilable and text.compilable
        self.norm = nn.Identity()  # each tower ends with its own
        self.unembed_image = Linear(config.image.width, config.width, bias=False)
        self.unembed_text = Linear(config.text.width, config.width, bias=False)
        self.log_scale = nn.Parameter(torch.full((1,), math.log(config.scale)))
        for layer in (self.unembed_image, self.unembed_text):
            layer.init(lambda weight: nn.init.normal_(weight, std=weight.shape[1] ** -0.5))

    def features(self, *inputs: Tensor) -> Tensor:
        """Patches and tokens in the common space, [B, N + T, D]; of an image without a text, its patches."""
        self.image.checkpointing = self.checkpointing
        seen = self.unembed_image(self.image.features(*(inputs[:-2] or inputs)))
        return seen if len(inputs) < 3 else torch.cat((seen, self.words(*inputs[-2:])), dim=1)

    def words(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Tokens [B, T] with their lengths [B] in the common space, [B, T, D]."""
        self.text.checkpointing = self.checkpointing
        return self.unembed_text(self.text.features(tokens, Padded(lengths, tokens.shape[1])))

    def text_vectors(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.head(self._text_vector(self.words(tokens, lengths), lengths))

    def pooled(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Unit vectors [B, 2, D]: of the image (its class token, or the mean of its patches) and of the text."""
        if len(inputs) < 3:
            return self._image_vector(x)[:, None]
        count = x.shape[1] - inputs[-2].shape[1]
        return torch.stack((self._image_vector(x[:, :count]), self._text_vector(x[:, count:], inputs[-1])), dim=1)

    def head(self, x: Tensor) -> Tensor:
        """Vectors times the root of the scale, so that the dot product of two of them has the whole of it."""
        return x * (self.log_scale.clamp(max=HOTTEST) / 2).exp()

    def _image_vector(self, x: Tensor) -> Tensor:
        return F.normalize(pooled(x, None, "cls" if self.before else "mean"), dim=-1)

    def _text_vector(self, x: Tensor, lengths: Tensor) -> Tensor:
        return F.normalize(pooled(x, Padded(lengths, x.shape[1]).filled(), "mean"), dim=-1)

    def forward_methods(self) -> list[tuple[nn.Module, str]]:
        return [*super().forward_methods(), (self, "text_vectors")]

    def inputs_of(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """The first parts are patches of an image, the others tokens of a text: up to half of them."""
        count = min(tokens.shape[1] // 2, self.config.text.context)
        images = self.image.inputs_of(tokens[:, : tokens.shape[1] - count])
        words = tokens[:, tokens.shape[1] - count :] % self.config.vocabulary
        return *images, words, torch.full((len(tokens),), count, device=tokens.device)

    def places(self, *inputs: Tensor) -> list[str]:
        return self.image.places(*inputs)
