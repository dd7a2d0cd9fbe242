"""Reversible instance normalization, RevIN (Kim et al. 2022), without its learned gain and bias."""

from typing import NamedTuple, Self

from torch import Tensor

EPS = 1e-5  # added to the variance: a constant history has none


class InstanceScale(NamedTuple):
    """Level and spread of the history of each series. Taken out before a model and put back after it, they make its
    forecast of a * x + b that of x, times a, plus b: a shift of level between training and test does no harm."""

    mean: Tensor  # [R, 1]
    deviation: Tensor  # [R, 1]

    @classmethod
    def of(cls, series: Tensor) -> Self:
        """The scale of each series [R, T], over time (eq. 1); it is data, so no gradient flows through it."""
        variance = series.var(1, keepdim=True, correction=0)
        return cls(series.mean(1, keepdim=True).detach(), (variance + EPS).sqrt().detach())

    def normalized(self, series: Tensor) -> Tensor:
        """Series [R, ...] with mean 0 and variance 1 (eq. 2)."""
        return (series - self.mean) / self.deviation

    def restored(self, forecast: Tensor) -> Tensor:
        """Forecasts [R, ...] of normalized series in the scale of their history (eq. 3)."""
        return forecast * self.deviation + self.mean
