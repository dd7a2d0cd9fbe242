"""An image encoder and a text encoder that learn which emoji a text is about, from published weights of both."""

from regard.data import ImageTextConfig
from regard.models import EfficientNetConfig, EncoderConfig, TwoTowersConfig
from regard.nn.heads import NoHeadConfig
from regard.tasks import ContrastiveConfig
from regard.train import AdamWConfig, Experiment, TrainConfig
from regard.train.adapt import FrozenConfig


def recipe() -> Experiment:
    """Two towers (CLIP) that learn from 1,500 emoji with names and tags.

    regard train emoji-clip
    """
    image, text = EfficientNetConfig(head=NoHeadConfig()), EncoderConfig(head=NoHeadConfig())
    return Experiment(
        init="efficientnet-lite0+minilm",
        model=TwoTowersConfig(width=256, scale=8.0, image=image, text=text),
        data=ImageTextConfig(
            styles=("emojione", "fluent-emoji"),
            size=128,
            crop=4,
            flip=True,
            affine=0.6,
            color=0.2,
            erase=0.2,
            tokens=20,
        ),
        task=ContrastiveConfig(),
        train=TrainConfig(
            steps=150,
            dropout=0.0,
            adapt=FrozenConfig(
                trained=("unembed_image", "unembed_text", *(f"image.blocks.{number}" for number in range(5, 16))),
                head=5.0,
            ),
            optimizer=AdamWConfig(lr=3e-4, betas=(0.9, 0.98), weight_decay=0.05),
            evaluate_every=50,
            save_every=None,
        ),
    )
