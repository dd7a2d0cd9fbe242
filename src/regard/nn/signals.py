"""Signals as sequences of vectors: how an array of samples or frames over time is cut into parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Choice, option
from regard.errors import UserError
from regard.nn.linear import Linear

T = TypeVar("T", int, Tensor)
PARTS = 64  # different ones, for tests
SEED = 13


class SignalEmbedding(nn.Module):
    """Signals [B, T, M] (T points in time, M channels) to the vectors of their parts, [B, N, C].

    ``forward`` takes the signals, which are zero behind their ``lengths`` [B], and these lengths; None: all of T.
    """

    channels: int
    config: SignalEmbeddingConfig
    overlap: bool = False  # a part depends on points of its neighbors, so that the order of parts matters

    def reset(self) -> None:
        """Initialize the weights."""

    def signals_of(self, tokens: Tensor) -> Tensor:
        """Signals [B, T, M] whose parts are equal where ``tokens`` [B, N] are: `prove` tests its claims on them."""
        weight = next(weight for weight in self.parameters() if weight.is_floating_point())
        generator, points = torch.Generator().manual_seed(SEED), self.config.length(tokens.shape[1]) // tokens.shape[1]
        book = torch.randn(PARTS, points, self.channels, generator=generator).to(weight)
        return book[tokens % PARTS].flatten(1, 2)

    def check(self, signals: Tensor) -> None:
        """A ``UserError`` for signals of another shape."""
        if signals.ndim != 3 or signals.shape[2] != self.channels or not signals.shape[1]:
            raise UserError(f"this model reads signals of shape [B, T, {self.channels}], not {list(signals.shape)}")


class SignalEmbeddingConfig(Choice):
    """How a signal becomes a sequence."""

    def check(self) -> None:
        """Refuse impossible sizes."""

    def count(self, length: T) -> T:
        """The number of parts of a signal of ``length`` points, or of each of several."""
        raise NotImplementedError

    def length(self, parts: int) -> int:
        """The length of a signal with this number of parts."""
        raise NotImplementedError

    def build(self, channels: int, width: int) -> SignalEmbedding:
        """The embedding of signals with so many channels."""
        raise NotImplementedError


@dataclass(frozen=True)
class PatchesConfig(SignalEmbeddingConfig, kind="patches"):
    """Patches of neighboring points, multiplied by one matrix: for time series, frames of a spectrogram, rows."""

    size: int = option(1, "points in a patch")

    def check(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")

    def build(self, channels: int, width: int) -> SignalPatches:
        return SignalPatches(self, channels, width)

    def count(self, length: T) -> T:
        return (length + self.size - 1) // self.size

    def length(self, parts: int) -> int:
        return parts * self.size


class SignalPatches(SignalEmbedding):
    """A linear map of each patch; a last patch that is not full is filled with zeros."""

    def __init__(self, config: PatchesConfig, channels: int, width: int):
        super().__init__()
        self.config, self.size, self.channels = config, config.size, channels
        self.project = Linear(self.size * channels, width)

    def forward(self, signals: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.check(signals)
        x = F.pad(signals, (0, 0, 0, -signals.shape[1] % self.size))
        return self.project(x.unflatten(1, (-1, self.size)).flatten(2))

    def reset(self) -> None:
        """Outputs of variance 1 for points of variance 1; the bias becomes 0."""
        self.project.init(lambda weight: nn.init.normal_(weight, std=self.project.in_features**-0.5))
