"""Forecasts of time series: the mean by the squared error, or quantiles by the pinball loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.config import option
from regard.data.base import ArrayBatch, Data
from regard.data.series.data import SeriesData
from regard.errors import UserError
from regard.models import Forecaster, ForecasterConfig, ModelConfig
from regard.models.forecast import ForecastHeadConfig, check_quantiles
from regard.pages.charts import Axes, Series
from regard.pages.html import ChartSection
from regard.tasks.base import Measured, Predicting, Prediction, TaskConfig, Term
from regard.tasks.labeled import outputs

BARS = "▁▂▃▄▅▆▇█"
SHOWN = 40  # characters of a forecast in a line
HISTORY = 2  # a chart shows the last points of the history, so many times the horizon


@dataclass(frozen=True)
class ForecastConfig(TaskConfig, kind="forecast"):
    """Forecast the next points of time series."""

    trains, examples, unit, measured_in = Forecaster, SeriesData, "value", "error"
    kinds_of_data = "time series: --data series"
    quantiles: tuple[float, ...] = option(
        (), "forecast these quantiles by the pinball loss, such as 0.1,0.5,0.9 (default: the mean by squared errors)"
    )

    def check(self) -> None:
        check_quantiles(self.quantiles)

    def model_for(self, model: ModelConfig, data: Data) -> ModelConfig:
        """The model with a head for the horizon, and the names and scales of the series."""
        assert isinstance(data, SeriesData)
        if not isinstance(model, ForecasterConfig):
            raise UserError(f"the task {self.kind} trains a model of series, such as patchtst; a {model.kind} is none")
        means, deviations = (tuple(numbers.tolist()) for numbers in data.scale)
        return replace(model, head=ForecastHeadConfig(data.horizon, self.quantiles, data.columns, means, deviations))

    def build(self) -> ForecastTask:
        return ForecastTask(self)


class ForecastTask(Measured[ForecastConfig], Predicting):
    """Squared errors, or the mean of the pinball losses of the quantiles, of standardized values.

    Measures: mean squared and mean absolute error (of quantiles: of the middle one) and, with at least two quantiles,
    the share of values between the first and the last, which is to be their distance.
    """

    best = None

    def counts(self, batch: ArrayBatch) -> dict[str, Tensor]:
        return {"forecast": batch.targets.isfinite().sum()}

    def measured(self, model: Any, batch: ArrayBatch) -> tuple[dict[str, Term], Tensor]:
        found, further, details = outputs(model, batch.arguments)  # [B, H, M, Q]
        real = batch.targets.isfinite()
        targets = torch.where(real, batch.targets, 0)
        errors = torch.where(real[..., None], targets[..., None] - found, 0)
        losses = pinball(errors, self.config.quantiles) if self.config.quantiles else errors.square()
        term = Term(losses.mean(-1).sum(), real.sum(), details=details)
        ends = found.sort(-1).values  # quantiles that cross are put in order (Chernozhukov et al. 2010)
        middle = torch.where(real, targets - ends[..., found.shape[-1] // 2], 0)
        inside = real & (ends[..., 0] <= targets) & (targets <= ends[..., -1])
        return {"forecast": term, **further}, torch.stack(
            [middle.square().sum(), middle.abs().sum(), inside.sum(), real.sum()]
        )

    def metrics(self, sums: Tensor) -> dict[str, float]:
        squares, absolutes, inside, count = sums.tolist()
        found = {"mse": squares / max(count, 1), "mae": absolutes / max(count, 1)}
        return found | ({"coverage": inside / max(count, 1)} if len(self.config.quantiles) > 1 else {})

    def predictions(self, model: Any, batch: ArrayBatch) -> list[Prediction]:
        """For each window the forecast of every series, in the units of its table."""
        head, found = model.config.forecast, []
        forecasts = model(*batch.arguments).float().sort(-1).values  # [B, H, M, Q]
        rows = zip(*(x.cpu() for x in (batch.inputs, forecasts, batch.targets)), strict=True)
        for history, forecast, future in rows:
            charts, lines, record = [], [], {}
            for place, name in enumerate(head.columns):
                mean, deviation = head.means[place], head.deviations[place]
                past, quantiles, later = (
                    (x[:, place] * deviation + mean).movedim(0, -1).tolist() for x in (history, forecast, future)
                )
                record[name] = dict(zip([f"{q:g}" for q in head.quantiles] or ["mean"], quantiles, strict=True))
                lines.append(forecast_line(name, quantiles))
                charts.append(forecast_chart(name, past, quantiles, later))
            found.append(Prediction("\n".join(lines), {"forecast": record}, charts))
        return found


def pinball(errors: Tensor, quantiles: Sequence[float]) -> Tensor:
    """max(q e, (q - 1) e) for errors e = target - forecast, [..., Q]; its minimum is the quantile q.

    >>> pinball(torch.tensor([1.0, -1.0])[:, None].expand(2, 2), [0.1, 0.9])
    tensor([[0.1000, 0.9000],
            [0.9000, 0.1000]])
    """
    q = errors.new_tensor(quantiles)
    return torch.maximum(q * errors, (q - 1) * errors)


def forecast_line(name: str, values: Sequence[Sequence[float]]) -> str:
    """The middle one of the forecast quantiles [Q, H] as bars, its ends, and the last interval."""
    middle = values[len(values) // 2]
    step = max(1, -(-len(middle) // SHOWN))
    shown, low, high = middle[::step], min(middle), max(middle)
    bars = "".join(BARS[int((x - low) / ((high - low) or 1) * (len(BARS) - 1) + 0.5)] for x in shown)
    interval = f", {values[0][-1]:.4g} to {values[-1][-1]:.4g} at its end" if len(values) > 1 else ""
    return f"  {name}  {bars}  from {middle[0]:.4g} to {middle[-1]:.4g}{interval}"


def forecast_chart(
    name: str, past: Sequence[float], values: Sequence[Sequence[float]], future: Sequence[float]
) -> ChartSection:
    """The end of the history, the forecast with the range of its quantiles, and what happened, if that is known."""
    shown = past[-HISTORY * len(values[0]) :]
    places = range(1, len(values[0]) + 1)
    band = tuple(zip(places, values[0], values[-1], strict=True)) if len(values) > 1 else ()
    middle = Series("forecast", list(zip(places, values[len(values) // 2], strict=True)), 1, band=band)
    lines = [Series("history", list(zip(range(1 - len(shown), 1), shown, strict=True))), middle]
    known = [(place, value) for place, value in zip(places, future, strict=True) if value == value]
    lines += [Series("what happened", known, 2)] if known else []
    return ChartSection(name, "", lines, Axes("points from now", ""))
