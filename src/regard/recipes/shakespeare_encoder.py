"""An encoder that learns to fill in masked characters."""

from dataclasses import replace

from regard.data import TextConfig
from regard.models import EncoderConfig
from regard.recipes import shakespeare
from regard.tasks import MaskedTokensConfig
from regard.train import Experiment


def recipe() -> Experiment:
    """A small bidirectional Transformer that predicts masked characters: a minute on two CPU cores.

    regard train shakespeare-encoder

    Every mechanism that is not causal can be trained in it too, Linformer for one: --model.attention linformer
    """
    base = shakespeare.recipe()
    return replace(
        base,
        model=EncoderConfig(context=128, layers=3, heads=4, width=96),
        data=TextConfig(batch=32),
        task=MaskedTokensConfig(),
        train=replace(base.train, steps=600, evaluate_every=200, save_every=200),
    )
