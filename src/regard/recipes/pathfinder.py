"""A small convolutional network that follows paths."""

from regard.data import PathfinderConfig
from regard.models import ImageCNNConfig
from regard.tasks import ArrayClassificationConfig
from regard.train import AdamWConfig, Experiment, LinearScheduleConfig, TrainConfig


def recipe() -> Experiment:
    """A CNN that tells whether a dashed path connects two dots: generated pictures of 12 x 12 pixels.

    regard train pathfinder

    Larger ones: --data.size 16 | 24 | 32. Other models: --model vit | image-lstm. `regard evaluate --part test` has
    paths that are one and a half times as long. The loss stays at 0.693 for some hundred steps before it falls.
    """
    return Experiment(
        model=ImageCNNConfig(image=12, channels=1, layers=4, width=44),
        data=PathfinderConfig(size=12),
        task=ArrayClassificationConfig(),
        train=TrainConfig(
            steps=2000,
            optimizer=AdamWConfig(lr=1e-3),
            schedule=LinearScheduleConfig(),
            evaluate_every=500,
            save_every=None,
        ),
    )
