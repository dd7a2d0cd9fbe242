"""Two towers that learn which caption is that of a scene."""

from regard.data import SceneTextsConfig
from regard.models import EncoderConfig, HybridViTConfig, TwoTowersConfig
from regard.nn.heads import NoHeadConfig
from regard.tasks import ContrastiveConfig
from regard.train import Experiment, MuonConfig, TrainConfig, TrapezoidScheduleConfig


def recipe() -> Experiment:
    """Two towers (CLIP) that learn from captioned scenes of digits, and name new combinations of digit and color.

    regard train scenes
    """
    image = HybridViTConfig(image=24, patch=4, layers=3, heads=4, width=96, class_token=False, head=NoHeadConfig())
    text = EncoderConfig(context=12, layers=2, heads=4, width=64, head=NoHeadConfig())
    return Experiment(
        model=TwoTowersConfig(width=128, image=image, text=text),
        data=SceneTextsConfig(recolor=0.7, batch=128),
        task=ContrastiveConfig(),
        train=TrainConfig(
            steps=2600,
            optimizer=MuonConfig(lr=0.01, rest_lr=2e-3),
            schedule=TrapezoidScheduleConfig(),
            evaluate_every=1300,
            save_every=500,
        ),
    )
