"""A small Vision Transformer that learns handwritten digits of 8 x 8 pixels."""

from regard.data import ImagesConfig
from regard.models import ViTConfig
from regard.tasks import ImageClassificationConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A Vision Transformer of 16 patches that learns scikit-learn's digits in about a minute.

    regard train digits
    """
    return Experiment(
        model=ViTConfig(image=8, channels=1, patch=2, layers=4, heads=4, width=64),
        data=ImagesConfig(source="digits", batch=64),
        task=ImageClassificationConfig(),
        train=TrainConfig(steps=600, optimizer=AdamWConfig(lr=2e-3), evaluate_every=200, save_every=None),
    )
