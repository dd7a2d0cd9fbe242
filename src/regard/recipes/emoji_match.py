"""One Transformer over the patches of an emoji and the words of a text that classifies whether they match."""

from regard.data import BpeConfig, ImageTextConfig
from regard.models import OneStreamConfig
from regard.tasks import MatchingConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """One stream (ViLT) that learns which of two texts is about an emoji, in five minutes on a CPU.

    regard train emoji-match
    """
    return Experiment(
        model=OneStreamConfig(patch=8, layers=3, heads=4, width=128, dropout=0.1),
        data=ImageTextConfig(tokenizer=BpeConfig(vocabulary=2048), crop=3, flip=True, affine=0.6, color=0.1, batch=64),
        task=MatchingConfig(),
        train=TrainConfig(
            steps=None, seconds=300.0, optimizer=AdamWConfig(lr=1e-3), evaluate_every=200, save_every=None
        ),
    )
