"""Scenes of digits from captions, and captions from scenes, by one GPT over words and codes of patches."""

from regard.data import ScenesConfig
from regard.models import TextToImageConfig
from regard.tasks import TextToImageTaskConfig
from regard.train import Experiment, MuonConfig, TrainConfig, TrapezoidScheduleConfig


def recipe() -> Experiment:
    """A GPT that draws and captions scenes of colored digits, with an autoencoder that turns it into codes.

    regard train text-to-image
    """
    return Experiment(
        model=TextToImageConfig(layers=3, heads=4, width=96, codes=128),
        data=ScenesConfig(grid=4, batch=16),
        task=TextToImageTaskConfig(),
        train=TrainConfig(
            steps=6000, optimizer=MuonConfig(), schedule=TrapezoidScheduleConfig(), evaluate_every=2000, save_every=2000
        ),
    )
