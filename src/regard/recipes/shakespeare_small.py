"""The lab in seconds, for trying things out."""

from dataclasses import replace

from regard.data import TextConfig
from regard.models import GPTConfig
from regard.recipes import shakespeare
from regard.train import Experiment


def recipe() -> Experiment:
    """The lab's model at a quarter of its size, for trying things out: a few seconds on two CPU cores.

    regard train shakespeare-small

    About ten seconds on two cores, to about 2.0 nats per character.
    """
    lab = shakespeare.recipe()
    return replace(
        lab,
        model=GPTConfig(context=64, layers=2, heads=2, width=64, cap=15.0, ngrams=2),
        data=TextConfig(batch=12),
        train=replace(lab.train, steps=300, evaluate_every=150, save_every=150),
    )
