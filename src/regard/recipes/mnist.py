"""A Vision Transformer for the handwritten digits of MNIST."""

from regard.data import ImagesConfig
from regard.models import ViTConfig
from regard.tasks import ImageClassificationConfig
from regard.train import Experiment, MuonConfig, TrainConfig

#: What the recipes of images have in common.
MUON = MuonConfig(lr=0.02, weight_decay=0.1, rest_lr=2e-3)


def recipe() -> Experiment:
    """A Vision Transformer of 16 patches that learns the digits of MNIST for five minutes.

    regard train mnist

    On a GPU: --model.patch 4 --train.epochs 20.
    """
    return Experiment(
        model=ViTConfig(image=28, channels=1, patch=7, layers=4, heads=4, width=96),
        data=ImagesConfig(source="mnist", validation=0.02, crop=2, batch=128),
        task=ImageClassificationConfig(),
        train=TrainConfig(seconds=300, optimizer=MUON, evaluate_every=200, save_every=None),
    )
