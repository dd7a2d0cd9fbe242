"""A Transformer encoder of time series that recognizes speakers."""

from regard.data import LabeledSeriesConfig
from regard.models import SignalConfig
from regard.nn.norm import LayerNormConfig
from regard.nn.signals import PatchesConfig
from regard.tasks import ArrayClassificationConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A Transformer encoder that recognizes 9 speakers by a vowel, in about half a minute.

    regard train vowels
    """
    return Experiment(
        model=SignalConfig(layers=2, heads=4, width=64, dropout=0.2, norm=LayerNormConfig(), embed=PatchesConfig()),
        data=LabeledSeriesConfig(source="vowels", batch=32),
        task=ArrayClassificationConfig(),
        train=TrainConfig(steps=400, optimizer=AdamWConfig(lr=1e-3), evaluate_every=100, save_every=None),
    )
