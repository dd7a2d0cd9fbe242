"""A small Vision Transformer for clips that learns which digit moves which way."""

from regard.data import ClipsConfig
from regard.models import VideoConfig
from regard.tasks import ArrayClassificationConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A Vision Transformer of 64 tubelets that learns clips of scikit-learn's digits, on a CPU in minutes.

    regard train moving-digits
    """
    return Experiment(
        model=VideoConfig(image=16, channels=1, patch=4, frames=8, tubelet=2, layers=4, heads=4, width=64, dropout=0.1),
        data=ClipsConfig(clips=20_000, batch=64),
        task=ArrayClassificationConfig(),
        train=TrainConfig(steps=3000, optimizer=AdamWConfig(lr=2e-3), evaluate_every=1000, save_every=None),
    )
