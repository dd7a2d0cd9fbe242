"""A graph Transformer that predicts how soluble molecules are."""

from regard.attention import SoftmaxConfig
from regard.attention.normalizer import SigmoidConfig
from regard.data import GraphsConfig
from regard.models import GraphConfig
from regard.nn.heads import ValuesHeadConfig
from regard.nn.norm import NoNormConfig
from regard.tasks import RegressionConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A graph Transformer over the atoms of a molecule that predicts the logarithm of its solubility in water.

    regard train solubility

    All atoms see each other, with biases by the bond and the length of the shortest path between them. Solubility is
    about a sum over atoms: weights that need not sum to 1, no norms and a sum at the end keep how many there are.
    """
    return Experiment(
        model=GraphConfig(
            layers=4,
            heads=4,
            width=64,
            local=False,
            distances=6,
            zero_init=False,
            attention=SoftmaxConfig(normalizer=SigmoidConfig()),
            norm=NoNormConfig(),
            head=ValuesHeadConfig(pool="sum"),
        ),
        data=GraphsConfig(source="solubility", walks=8, batch=64),
        task=RegressionConfig(),
        train=TrainConfig(steps=500, optimizer=AdamWConfig(lr=3e-3), evaluate_every=50, save_every=None),
    )
