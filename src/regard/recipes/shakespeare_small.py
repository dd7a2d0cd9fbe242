"""The `shakespeare` model at a quarter of its size, for trying things out."""

from dataclasses import replace

from regard.data import TextConfig
from regard.models import GPTConfig
from regard.recipes import shakespeare
from regard.train import Experiment


def recipe() -> Experiment:
    """The `shakespeare` model at a quarter of its size, for trying things out: a few seconds on two CPU cores.

    regard train shakespeare-small

    About ten seconds on two cores, to about 2.0 nats per character.
    """
    base = shakespeare.recipe()
    return replace(
        base,
        model=GPTConfig(context=64, layers=2, heads=2, width=64, cap=15.0, ngrams=2),
        data=TextConfig(batch=12),
        train=replace(base.train, steps=300, evaluate_every=150, save_every=150),
    )
