"""The names of emoji in six languages, by a language model with gated cross-attention to images."""

from regard.data import BpeConfig, ImageTextConfig
from regard.models import CaptionerConfig, HybridViTConfig, PerceiverConfig
from regard.nn.blocks.block import GatedCrossConfig
from regard.nn.heads import NoHeadConfig
from regard.tasks import CaptionsConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A captioner with a resampler (Flamingo) that names emoji in the language of the examples before, on a CPU.

    regard train emoji-caption
    """
    images = HybridViTConfig(patch=8, layers=1, heads=4, width=128, class_token=False, dropout=0.1, head=NoHeadConfig())
    resampler = PerceiverConfig(
        encoder=images, latents=8, layers=1, reads_first=1, heads=4, width=128, dropout=0.1, head=NoHeadConfig()
    )
    return Experiment(
        model=CaptionerConfig(
            layers=2, heads=4, width=128, dropout=0.1, block=GatedCrossConfig(gate=1.0), encoder=resampler
        ),
        data=ImageTextConfig(
            languages=("en", "de", "fr", "es", "it", "pt"),
            tokenizer=BpeConfig(vocabulary=2048),
            tags=False,
            alike=5,
            tokens=12,
            crop=3,
            flip=True,
            affine=0.6,
            color=0.1,
            batch=80,
        ),
        task=CaptionsConfig(pairs=5, words=0.5),
        train=TrainConfig(
            steps=None, seconds=300.0, optimizer=AdamWConfig(lr=1e-3), evaluate_every=200, save_every=None
        ),
    )
