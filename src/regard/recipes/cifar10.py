"""A Vision Transformer for the photographs of CIFAR-10."""

from regard.data import ImagesConfig
from regard.models import ViTConfig
from regard.tasks import ImageClassificationConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A Vision Transformer of 64 patches that learns the photographs of CIFAR-10, with augmentation.

    regard train cifar10

    Made for a GPU; on a CPU limit the time: --train.seconds 900. For a better model: --train.epochs 100.
    """
    return Experiment(
        model=ViTConfig(image=32, patch=4, layers=6, heads=6, width=192),
        data=ImagesConfig(source="cifar10", validation=0.02, crop=4, flip=True, erase=0.25, mixup=0.3, batch=128),
        task=ImageClassificationConfig(smoothing=0.1),
        train=TrainConfig(
            epochs=10, optimizer=AdamWConfig(lr=1e-3, weight_decay=0.05), evaluate_every=400, save_every=None
        ),
    )
