"""PatchTST on ETTh1, the benchmark of long forecasts."""

from regard.data import SeriesConfig
from regard.models import PatchTSTConfig
from regard.tasks import ForecastConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A PatchTST that forecasts 96 hours of a transformer's load and oil temperature from 512, in a minute.

    regard train etth1
    """
    return Experiment(
        model=PatchTSTConfig(),
        data=SeriesConfig(source="etth1", limit=14_400, batch=32),
        task=ForecastConfig(),
        train=TrainConfig(steps=200, optimizer=AdamWConfig(lr=1e-3), evaluate_every=100, save_every=None, patience=2),
    )
