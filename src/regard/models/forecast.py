"""Forecasts of time series: PatchTST, a Transformer over patches (Nie et al. 2023), and DLinear (Zeng et al. 2023).

Both read every series of a table by itself with the same weights (channel independence): a batch [B, T, M] of M series
becomes B * M rows. So a trained model forecasts any number of series.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import option
from regard.errors import UserError
from regard.models.base import ArrayEncoder, ModelConfig
from regard.models.signal import SignalConfig, SignalEncoder
from regard.nn.heads import HeadConfig
from regard.nn.init import normal
from regard.nn.instance_scale import InstanceScale
from regard.nn.linear import Linear
from regard.nn.norm import NoNormConfig, NormConfig
from regard.nn.signals import PARTS, SEED, PatchesConfig, SignalEmbeddingConfig


@dataclass(frozen=True)
class ForecastHeadConfig(HeadConfig, kind="forecast"):
    """What a model forecasts: every point of the horizon, as one number or as quantiles."""

    horizon: int = option(96, "points to forecast", least=1)
    quantiles: tuple[float, ...] = option((), "the quantiles to forecast (default: the mean)")
    columns: tuple[str, ...] = option((), "the names of the series in training, written by the run")
    means: tuple[float, ...] = option((), "their means in the training part, written by the run")
    deviations: tuple[float, ...] = option((), "their standard deviations there, written by the run")

    def check(self) -> None:
        super().check()
        check_quantiles(self.quantiles)

    def outputs(self, vocabulary: int) -> None:
        return None  # the model has its own output layer over all parts

    @property
    def values(self) -> int:
        """Numbers for each point."""
        return max(1, len(self.quantiles))


def check_quantiles(quantiles: tuple[float, ...]) -> None:
    """Refuse what are no quantiles in increasing order."""
    if any(not 0 < q < 1 for q in quantiles) or list(quantiles) != sorted(set(quantiles)):
        raise ValueError(f"quantiles are increasing numbers between 0 and 1, such as 0.1,0.5,0.9; not {quantiles}")


@dataclass(frozen=True)
class ForecasterConfig(ModelConfig):
    """Base class of the configs of models that forecast."""

    generates, reads, vocabulary = False, "series", 0
    points: int = option(512, "points of the history that a forecast is made from", least=1)
    normalize: bool = option(
        True, "take level and spread of a history out, and put them back into its forecast (RevIN)"
    )
    head: HeadConfig = field(default_factory=ForecastHeadConfig)

    def check(self) -> None:
        super().check()
        if not isinstance(self.head, ForecastHeadConfig):
            raise ValueError(f"the head of a {self.kind} is forecast, not {self.head.kind}")

    @property
    def forecast(self) -> ForecastHeadConfig:
        """The head."""
        return cast(ForecastHeadConfig, self.head)

    @property
    def outputs(self) -> int:
        """Numbers that are forecast for each series."""
        return self.forecast.horizon * self.forecast.values

    def reading(self, vocabulary: int | None, shape: tuple[int, ...] | None) -> Self:
        if shape is None or len(shape) != 2:
            raise UserError(f"a {self.kind} forecasts time series; choose --data series, or another --model")
        return replace(self, points=shape[0])


class Forecaster(ArrayEncoder):
    """Series [B, T, M] to forecasts [B, H, M, Q] of the next H points: Q quantiles, or 1 for the mean.

    Features [B * M, N, C]: those of series m of example b are row b * M + m.
    """

    config: ForecasterConfig
    fixed_size = True

    def rows(self, series: Tensor) -> Tensor:
        """Series [B, T, M] as rows [B * M, T]."""
        if series.ndim != 3 or not series.shape[1]:
            raise UserError(f"this model reads histories of shape [B, T, M], not {list(series.shape)}")
        return series.transpose(1, 2).flatten(0, 1)

    def normalized(self, series: Tensor) -> Tensor:
        """The rows, normalized if the model does that."""
        rows = self.rows(series)
        return InstanceScale.of(rows).normalized(rows) if self.config.normalize else rows

    def outputs(self, x: Tensor) -> Tensor:
        """Features [B * M, N, C] to all numbers that are forecast, [B * M, H * Q]."""
        raise NotImplementedError

    def pooled(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Features to forecasts [B, H, M, Q] in the scale of the series."""
        (series,), head = inputs, self.config.forecast
        if series.shape[1] != self.config.points:  # features there may be of other histories, but no forecast
            raise UserError(f"this model forecasts from {self.config.points} points, not from {series.shape[1]}")
        found = self.outputs(x)
        if self.config.normalize:
            found = InstanceScale.of(self.rows(series)).restored(found)
        return found.view(len(series), -1, head.horizon, head.values).transpose(1, 2)

    def head(self, x: Tensor) -> Tensor:
        """Nothing more: ``pooled`` has the output layer, since it reads all parts of a series at once."""
        return x


@dataclass(frozen=True)
class PatchTSTConfig(ForecasterConfig, SignalConfig, kind="patchtst"):
    """Sizes and parts of a PatchTST. The defaults are the paper's for small data sets (table 9 and its code)."""

    channels: int = option(1, "series that are read together: always 1")
    layers: int = option(3, "number of blocks")
    width: int = option(16, "model width")
    dropout: float = option(0.3, "dropout on embeddings, attention and residual branches")
    attention_dropout: float | None = option(0.0, "dropout on attention weights, if it differs from the rest")
    qk_norm: bool = option(False, "normalize queries and keys per head")
    # A norm of each token would erase how large a patch is beside the others. The paper's batch norm does not, but
    # makes a row depend on its batch; normalized series and so few layers need none (docs/results/series.md).
    norm: NormConfig = field(default_factory=NoNormConfig)
    embed: SignalEmbeddingConfig = field(
        default_factory=lambda: PatchesConfig(size=16, stride=8, repeat=True),
        metadata={"help": "the parts of a series"},
    )
    head: HeadConfig = field(default_factory=ForecastHeadConfig)

    def check(self) -> None:
        super().check()
        if self.channels != 1 or self.class_token:
            raise ValueError(
                "a patchtst reads one series at a time without a class token; leave both at their defaults"
            )

    def make(self) -> PatchTST:
        return PatchTST(self)


class PatchTST(Forecaster, SignalEncoder):
    """A Transformer encoder over the patches of each series, and one linear map of all their features."""

    config: PatchTSTConfig

    def __init__(self, config: PatchTSTConfig):
        super().__init__(config)
        self.unembed = Linear(config.context * config.width, config.outputs)
        self.unembed.init(normal(0.02))

    def features(self, series: Tensor) -> Tensor:  # type: ignore[override]
        """Features [B * M, N, C] of the patches."""
        return SignalEncoder.features(self, self.normalized(series)[:, :, None])

    def outputs(self, x: Tensor) -> Tensor:
        return self.unembed(x.flatten(1))


@dataclass(frozen=True)
class DLinearConfig(ForecasterConfig, kind="dlinear"):
    """One linear map from history to horizon for the trend, and one for the rest."""

    layers, width = 1, 2
    kernel: int = option(25, "points of the moving average that is the trend (1: no trend, one linear map)", least=1)
    normalize: bool = option(
        False, "take level and spread of a history out, and put them back into its forecast (RevIN)"
    )

    @property
    def context(self) -> int:
        """The points of a history: each is a part."""
        return self.points

    def make(self) -> DLinear:
        return DLinear(self)


class DLinear(Forecaster):
    """Trend and rest of a history, each mapped to the horizon by one matrix (Zeng et al. 2023, sec. 3)."""

    config: DLinearConfig

    def __init__(self, config: DLinearConfig):
        super().__init__(config)
        parts = 1 if config.kernel == 1 else 2
        self.blocks = nn.ModuleList(Linear(config.points, config.outputs, bias=False) for _ in range(parts))
        self.bias = nn.Parameter(torch.zeros(config.outputs))
        self.unembed = nn.Identity()  # type: ignore[assignment]
        for block in self.blocks:
            nn.init.constant_(cast(Linear, block).weight, 1 / config.points)  # as the authors: the mean of the history

    def features(self, series: Tensor) -> Tensor:
        """Each point of a history, [B * M, T, 2]: what differs from the trend, and the trend."""
        rows, kernel = self.normalized(series), self.config.kernel
        if kernel == 1:
            return rows[:, :, None]
        before = (kernel - 1) // 2
        padded = F.pad(rows[:, None], (before, kernel - 1 - before), mode="replicate")
        trend = F.avg_pool1d(padded, kernel, stride=1)[:, 0]
        return torch.stack((rows - trend, trend), dim=-1)

    def outputs(self, x: Tensor) -> Tensor:
        parts = zip(self.blocks, x.unbind(-1), strict=True)
        return torch.stack([self.run_block(block, part) for block, part in parts]).sum(0) + self.bias

    def inputs_of(self, tokens: Tensor) -> tuple[Tensor]:
        book = torch.randn(PARTS, generator=torch.Generator().manual_seed(SEED)).to(self.bias)
        return (book[tokens % PARTS][:, :, None],)

    def places(self, *inputs: Tensor) -> list[str]:
        """The number of each point, from 1 on."""
        return [f"{number} " for number in range(1, inputs[0].shape[1] + 1)]
