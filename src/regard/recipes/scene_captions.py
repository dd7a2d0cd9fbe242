"""Captions of scenes of digits, by a language model with gated cross-attention to the image."""

from regard.data import ScenesConfig
from regard.models import CaptionerConfig, HybridViTConfig
from regard.nn.blocks.block import GatedCrossConfig
from regard.nn.heads import NoHeadConfig
from regard.nn.positions.position import LearnedPositionConfig
from regard.tasks import CaptionsConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A captioner (Flamingo) of scenes such as "two red 3s above a blue 7", on a CPU in minutes.

    Digits are learned in any color, and words from the image alone.

    regard train scene-captions
    """
    encoder = HybridViTConfig(patch=4, layers=1, heads=4, width=64, class_token=False, head=NoHeadConfig())
    return Experiment(
        model=CaptionerConfig(
            autoregressive=False,  # or a color would tell the digits that it had in training
            layers=2,
            heads=4,
            width=64,
            position=LearnedPositionConfig(),
            block=GatedCrossConfig(gate=1.0),
            encoder=encoder,
        ),
        data=ScenesConfig(recolor=0.7, batch=128),
        task=CaptionsConfig(words=1.0),
        train=TrainConfig(
            steps=7000, optimizer=AdamWConfig(lr=2e-3, weight_decay=0.3), evaluate_every=1000, save_every=500
        ),
    )
