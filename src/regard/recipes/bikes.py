"""Quantiles of the demand for shared bikes."""

from regard.data import SeriesConfig
from regard.models import PatchTSTConfig
from regard.nn.signals import PatchesConfig
from regard.tasks import ForecastConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A PatchTST that forecasts how many bikes are rented in each of the next 48 hours, as quantiles.

    regard train bikes
    """
    return Experiment(
        model=PatchTSTConfig(width=32, dropout=0.1, embed=PatchesConfig(size=12, stride=12, repeat=True)),
        data=SeriesConfig(source="bikes", columns=("count",), points=336, horizon=48),
        task=ForecastConfig(quantiles=(0.1, 0.5, 0.9)),
        train=TrainConfig(steps=500, optimizer=AdamWConfig(lr=2e-3), evaluate_every=250, save_every=None),
    )
