"""A small Vision Transformer that looks for paths."""

from regard.data import PathfinderConfig
from regard.models import ViTConfig
from regard.tasks import ArrayClassificationConfig
from regard.train import Experiment, LinearScheduleConfig, MuonConfig, TrainConfig


def recipe() -> Experiment:
    """A Vision Transformer that tells whether a dashed path connects two dots: generated pictures of 12 x 12 pixels.

    regard train pathfinder

    Larger ones: --data.size 16 | 24 | 32. Other models: --model image-cnn | image-lstm. `regard evaluate --part test`
    has paths that are one and a half times as long.
    """
    return Experiment(
        model=ViTConfig(image=12, channels=1, patch=2, layers=3, heads=4, width=64),
        data=PathfinderConfig(size=12),
        task=ArrayClassificationConfig(),
        train=TrainConfig(
            steps=1500,
            optimizer=MuonConfig(lr=0.01, rest_lr=2e-3),
            schedule=LinearScheduleConfig(),
            evaluate_every=500,
            save_every=None,
        ),
    )
