"""An encoder of sound that writes Dutch."""

from regard.data import SpeechConfig
from regard.models import SignalConfig
from regard.nn.positions.position import RotaryConfig
from regard.nn.sound import LogMelConfig
from regard.tasks import SpeechTaskConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A Transformer over the spectrogram of speech, trained by CTC on 1.2 hours of Dutch.

    regard train dutch-speech
    """
    return Experiment(
        model=SignalConfig(
            points=160_000,
            layers=4,
            heads=4,
            width=144,
            dropout=0.1,
            position=RotaryConfig(),
            embed=LogMelConfig(rate=16_000, bands=64, strides=(2, 2), mask_bands=10, mask_frames=25),
        ),
        data=SpeechConfig(speed=0.1, batch=16),
        task=SpeechTaskConfig(),
        train=TrainConfig(steps=3000, optimizer=AdamWConfig(lr=2e-3), evaluate_every=500, save_every=1000),
    )
