"""A small Vision Transformer that learns handwritten digits of 8 x 8 pixels."""

from regard.data import ImagesConfig
from regard.models import ViTConfig
from regard.tasks import ImageClassificationConfig
from regard.train import AdamWConfig, Experiment, LinearScheduleConfig, TrainConfig


def recipe() -> Experiment:
    """A Vision Transformer of 16 patches that learns scikit-learn's digits in about a minute.

    regard train digits
    """
    return Experiment(
        model=ViTConfig(image=8, channels=1, patch=2, layers=4, heads=4, width=64),
        data=ImagesConfig(source="digits", affine=0.3, batch=64),
        task=ImageClassificationConfig(),
        train=TrainConfig(
            steps=2000,
            optimizer=AdamWConfig(lr=2e-3),
            schedule=LinearScheduleConfig(),
            evaluate_every=500,
            save_every=None,
        ),
    )
