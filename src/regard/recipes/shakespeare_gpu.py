"""The first 1.1 MB of the plays in seconds, on a GPU."""

from dataclasses import replace

from regard.data import TextConfig
from regard.models import GPTConfig
from regard.recipes import shakespeare
from regard.train import Experiment, TrapezoidScheduleConfig


def recipe() -> Experiment:
    """A 6-layer character model of the first 1.1 MB of the plays, for one GPU: seconds after compiling.

    regard train shakespeare-gpu

    The text is small for a GPU and the model soon memorizes it: hence dropout, and few steps.
    """
    base = shakespeare.recipe()
    schedule = TrapezoidScheduleConfig(warmup=0.02, decay=0.6)
    return replace(
        base,
        model=GPTConfig(context=256, layers=6, heads=4, width=256, dropout=0.1, cap=15.0, ngrams=2),
        data=TextConfig(limit=1_100_000, batch=64),
        train=replace(base.train, steps=600, schedule=schedule, compile="graphs", evaluate_every=None, save_every=None),
    )
