"""A small GPT that copies letters."""

from regard.data import SyntheticConfig
from regard.models import GPTConfig
from regard.nn.positions.position import AlibiConfig
from regard.tasks import SolveConfig
from regard.train import Experiment, MuonConfig, TrainConfig


def recipe() -> Experiment:
    """A small GPT that learns to copy up to eight letters: half a minute on two CPU cores.

    regard train toy-copy

    Other problems: --data.problem reverse | sort | selective-copy | recall | induction | nesting | agreement |
    brackets | needle | parity. `regard evaluate --part test` has problems of once, twice and four times that size.
    """
    return Experiment(
        model=GPTConfig(context=160, layers=2, heads=4, width=64, position=AlibiConfig()),
        data=SyntheticConfig(size=8),
        task=SolveConfig(),
        train=TrainConfig(steps=1500, optimizer=MuonConfig(lr=0.02), evaluate_every=300, save_every=None),
    )
