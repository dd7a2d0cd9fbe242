"""Captions of scenes of digits, by a language model with gated cross-attention to the image."""

from regard.data import ScenesConfig
from regard.models import CaptionerConfig, HybridViTConfig
from regard.nn.heads import NoHeadConfig
from regard.tasks import CaptionsConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A captioner (Flamingo) of scenes such as "two red 3s above a blue 7", on a CPU in minutes.

    regard train scene-captions
    """
    encoder = HybridViTConfig(patch=4, layers=2, heads=4, width=64, class_token=False, head=NoHeadConfig())
    return Experiment(
        model=CaptionerConfig(layers=2, heads=4, width=64, encoder=encoder),
        data=ScenesConfig(batch=32),
        task=CaptionsConfig(),
        train=TrainConfig(steps=6000, optimizer=AdamWConfig(lr=2e-3), evaluate_every=1000, save_every=500),
    )
