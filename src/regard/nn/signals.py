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

    def filled(self, signals: Tensor, lengths: Tensor) -> Tensor:
        """Signals that have nothing but padding after ``lengths`` [B] points. Default: zeros."""
        real = torch.arange(signals.shape[1], device=signals.device) < lengths[:, None]
        return signals.masked_fill(~real[:, :, None], 0)

    def signals_of(self, tokens: Tensor) -> Tensor:
        """Signals [B, T, M] of one piece for each of ``tokens`` [B, N]: `prove` tests its claims on them.

        Parts are equal where their tokens are and, if they overlap, also the tokens of the pieces that they reach into.
        """
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

    size: int = option(1, "points in a patch", least=1)
    stride: int | None = option(None, "points from one patch to the next; below size they overlap (default: size)")
    repeat: bool = option(False, "fill the last patches with copies of the last point, rather than with zeros")

    def check(self) -> None:
        super().check()
        if not 1 <= self.step <= self.size:
            raise ValueError(f"stride must be from 1 to size = {self.size}, or points are left out; not {self.stride}")

    @property
    def step(self) -> int:
        """Points from one patch to the next."""
        return self.size if self.stride is None else self.stride

    def build(self, channels: int, width: int) -> SignalPatches:
        return SignalPatches(self, channels, width)

    def count(self, length: T) -> T:
        return (length + self.step - 1) // self.step

    def length(self, parts: int) -> int:
        return parts * self.step


class SignalPatches(SignalEmbedding):
    """A linear map of each patch. One begins every ``step`` points; the last ones are filled up."""

    config: PatchesConfig

    def __init__(self, config: PatchesConfig, channels: int, width: int):
        super().__init__()
        self.config, self.size, self.channels = config, config.size, channels
        self.project = Linear(self.size * channels, width)

    def forward(self, signals: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.check(signals)
        size, step = self.size, self.config.step
        missing = -signals.shape[1] % step + size - step
        end = signals[:, -1:].expand(-1, missing, -1) if self.config.repeat else None
        x = F.pad(signals, (0, 0, 0, missing)) if end is None else torch.cat((signals, end), dim=1)
        if step == size:
            return self.project(x.unflatten(1, (-1, size)).flatten(2))
        return self.project(x.unfold(1, size, step).transpose(2, 3).flatten(2))  # [B, N, size * M]

    def filled(self, signals: Tensor, lengths: Tensor) -> Tensor:
        if not self.config.repeat:
            return super().filled(signals, lengths)
        points = torch.arange(signals.shape[1], device=signals.device).minimum(lengths[:, None] - 1).clamp(min=0)
        return signals.gather(1, points[:, :, None].expand_as(signals))

    def reset(self) -> None:
        """Outputs of variance 1 for points of variance 1; the bias becomes 0."""
        self.project.init(lambda weight: nn.init.normal_(weight, std=self.project.in_features**-0.5))
