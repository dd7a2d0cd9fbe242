"""Scenes of digits from captions, and captions from scenes, by one GPT over words and codes of patches."""

from regard.data import ScenesConfig
from regard.models import TextToImageConfig
from regard.tasks import TextToImageTaskConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A GPT that draws and captions scenes of colored digits, with an autoencoder that turns patches into codes.

    regard train text-to-image
    """
    return Experiment(
        model=TextToImageConfig(layers=3, heads=4, width=96),
        data=ScenesConfig(grid=4, batch=16),
        task=TextToImageTaskConfig(),
        train=TrainConfig(steps=6000, optimizer=AdamWConfig(lr=3e-3), evaluate_every=1500, save_every=500),
    )
