"""Output heads of encoders: what is computed from the features of the tokens.

Every head has the same form: pool the tokens or not, a ``transform`` of each vector, and a linear output layer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Choice, option
from regard.nn.feedforward import ACTIVATIONS
from regard.nn.linear import Linear
from regard.nn.norm import NormConfig

HeadActivation = Literal["tanh", "relu", "gelu", "gelu_tanh", "silu"]


class HeadTransform(nn.Module):
    """norm(activation(dense(x))), [..., C] to [..., C]; the norm may be an identity."""

    def __init__(self, width: int, activation: str, norm: nn.Module):
        super().__init__()
        self.dense = Linear(width, width)
        self.activation: Callable[[Tensor], Tensor] = torch.tanh if activation == "tanh" else ACTIVATIONS[activation][0]
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class HeadConfig(Choice):
    """What an encoder computes from its features."""

    predicts_tokens: ClassVar[bool] = False  # the outputs are logits over the vocabulary
    bias: bool = True  # the output layer has a bias
    pool: Literal["cls", "mean", "sum"] | None = None  # one output per row, from its first token or from all

    def outputs(self, vocabulary: int) -> int | None:
        """The width of the output layer; None: there is none, and the features are the result."""
        raise NotImplementedError

    def transform(self, width: int, norm: NormConfig) -> nn.Module:
        """What precedes the output layer. Default: nothing."""
        return nn.Identity()


@dataclass(frozen=True)
class TokensHeadConfig(HeadConfig, kind="tokens"):
    """Masked tokens by one linear layer without a bias."""

    predicts_tokens, bias = True, False

    def outputs(self, vocabulary: int) -> int:
        return vocabulary


@dataclass(frozen=True)
class BertTokensHeadConfig(HeadConfig, kind="bert-tokens"):
    """Masked tokens as in BERT: a dense layer, an activation and a norm before the output layer, which has a bias."""

    predicts_tokens = True
    activation: HeadActivation = option("gelu", "the activation after the dense layer")

    def outputs(self, vocabulary: int) -> int:
        return vocabulary

    def transform(self, width: int, norm: NormConfig) -> nn.Module:
        return HeadTransform(width, self.activation, norm.build(width))


@dataclass(frozen=True)
class LabeledHeadConfig(HeadConfig):
    """Base class of heads with classes."""

    classes: int = option(2, "number of classes", least=1)
    labels: tuple[str, ...] = option((), "the names of the classes, in order (default: none)")

    def check(self) -> None:
        super().check()
        if self.labels and len(self.labels) != self.classes:
            raise ValueError(f"{len(self.labels)} labels were given for {self.classes} classes; give one for each")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes; LABEL_0, LABEL_1 and so on if they have none."""
        return self.labels or tuple(f"LABEL_{number}" for number in range(self.classes))

    def outputs(self, vocabulary: int) -> int:
        return self.classes


@dataclass(frozen=True)
class ClassesHeadConfig(LabeledHeadConfig, kind="classes"):
    """Classes of whole sequences."""

    pool: Literal["cls", "mean"] = option("cls", "classify by the first token of a sequence, or by the mean of all")
    dense: HeadActivation | None = option(None, "a dense layer with this activation first (BERT: tanh; default: none)")
    bias: bool = option(True, "a bias in the output layer")

    def transform(self, width: int, norm: NormConfig) -> nn.Module:
        return nn.Identity() if self.dense is None else HeadTransform(width, self.dense, nn.Identity())


@dataclass(frozen=True)
class TokenClassesHeadConfig(LabeledHeadConfig, kind="token-classes"):
    """A class for each token, as in tagging."""


@dataclass(frozen=True)
class SpansHeadConfig(HeadConfig, kind="spans"):
    """Two logits for each token: a span, such as the answer to a question, starts there, or ends there."""

    def outputs(self, vocabulary: int) -> int:
        return 2


@dataclass(frozen=True)
class PixelsHeadConfig(HeadConfig, kind="pixels"):
    """The pixels of each patch of an image."""

    pixels: int = option(48, "numbers in a patch: its pixels times the channels")

    def outputs(self, vocabulary: int) -> int:
        return self.pixels


@dataclass(frozen=True)
class ValuesHeadConfig(HeadConfig, kind="values"):
    """Numbers that describe a whole array, as in regression."""

    values: int = option(1, "how many")
    pool: Literal["cls", "mean", "sum"] = option("mean", "predict by the first token, or by the mean or sum of all")
    dense: HeadActivation | None = option(None, "a dense layer with this activation first (default: none)")

    def outputs(self, vocabulary: int) -> int:
        return self.values

    def transform(self, width: int, norm: NormConfig) -> nn.Module:
        return nn.Identity() if self.dense is None else HeadTransform(width, self.dense, nn.Identity())


@dataclass(frozen=True)
class LinksHeadConfig(HeadConfig, kind="links"):
    """A score for each node as the answer to a question (node, relation) (DistMult: Yang et al. 2015, eq. 4)."""

    relations: int = option(1, "number of relations that are asked for")
    bias = False

    def outputs(self, vocabulary: int) -> int:
        return 1


@dataclass(frozen=True)
class NoHeadConfig(HeadConfig, kind="none"):
    """The features themselves, as for sentence vectors."""

    def outputs(self, vocabulary: int) -> None:
        return None


def pooled(x: Tensor, filled: Tensor | None, pool: Literal["cls", "mean", "sum"]) -> Tensor:
    """Features [B, N, C] of tokens to one vector per row, [B, C]; ``filled`` [B, N]: where there is a token."""
    if pool == "cls":
        return x[:, 0]
    total = (x if filled is None else x.masked_fill(~filled[:, :, None], 0)).sum(1)
    return total if pool == "sum" else total / (x.shape[1] if filled is None else filled.sum(1, keepdim=True))


def sentence_vectors(x: Tensor, filled: Tensor | None = None, pool: Literal["cls", "mean"] = "mean") -> Tensor:
    """Pooled features of length 1, [B, C]: their dot products are cosines (Reimers & Gurevych 2019, sec. 3)."""
    return F.normalize(pooled(x, filled, pool), dim=-1)
