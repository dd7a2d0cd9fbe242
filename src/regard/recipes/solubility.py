"""A graph Transformer that predicts how soluble molecules are."""

from regard.data import GraphsConfig
from regard.models import GraphConfig
from regard.tasks import RegressionConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A graph Transformer over the atoms of a molecule that predicts the logarithm of its solubility in water.

    regard train solubility

    All atoms see each other, with biases by the bond and the length of the shortest path between them.
    """
    return Experiment(
        model=GraphConfig(layers=4, heads=4, width=64, dropout=0.1, local=False, distances=6),
        data=GraphsConfig(source="solubility", walks=8, batch=64),
        task=RegressionConfig(),
        train=TrainConfig(steps=1000, optimizer=AdamWConfig(lr=3e-3), evaluate_every=100, save_every=None),
    )
