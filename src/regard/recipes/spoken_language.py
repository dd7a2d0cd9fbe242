"""An encoder of sound that classifies the spoken language."""

from regard.data import SoundsConfig
from regard.models import SignalConfig
from regard.nn.positions.position import RotaryConfig
from regard.nn.sound import LogMelConfig
from regard.tasks import ArrayClassificationConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A Transformer over the spectrogram of a phone prompt that names its language, out of five.

    regard train spoken-language

    For letters and syllables in 20 languages: --data.source spoken-letters --data.seconds 1.5.
    """
    return Experiment(
        model=SignalConfig(
            points=32_000,
            layers=3,
            heads=4,
            width=96,
            dropout=0.1,
            statistics=True,
            position=RotaryConfig(),
            embed=LogMelConfig(rate=8000, strides=(2, 2), each_band=False, mask_bands=8, mask_frames=20),
        ),
        data=SoundsConfig(),
        task=ArrayClassificationConfig(),
        train=TrainConfig(steps=600, optimizer=AdamWConfig(lr=1e-3), evaluate_every=200, save_every=None),
    )
