"""A Vision Transformer for the handwritten digits of MNIST."""

from regard.data import ImagesConfig
from regard.models import ViTConfig
from regard.tasks import ImageClassificationConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A Vision Transformer of 49 patches that learns the digits of MNIST in a few minutes.

    regard train mnist
    """
    return Experiment(
        model=ViTConfig(image=28, channels=1, patch=4, layers=4, heads=4, width=96),
        data=ImagesConfig(source="mnist", validation=0.05, crop=2, batch=128),
        task=ImageClassificationConfig(),
        train=TrainConfig(epochs=3, optimizer=AdamWConfig(lr=2e-3), evaluate_every=200, save_every=None),
    )
