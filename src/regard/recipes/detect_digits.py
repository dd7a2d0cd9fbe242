"""A small DETR that finds the digits of a scene."""

from regard.data import ScenesConfig
from regard.models import DetectorConfig
from regard.tasks import DetectionConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A Vision Transformer with eight queries that finds the digits of scenes and their boxes, on a CPU in minutes.

    regard train detect-digits

    Colors are mixed at random in training, because they say nothing about the digit.
    """
    return Experiment(
        model=DetectorConfig(image=24, patch=4, layers=3, decoder_layers=2, heads=4, width=64),
        data=ScenesConfig(recolor=0.8, batch=16),
        task=DetectionConfig(),
        train=TrainConfig(steps=6000, optimizer=AdamWConfig(lr=2e-3), evaluate_every=1500, save_every=500),
    )
