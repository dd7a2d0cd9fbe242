"""A graph Transformer that completes triples of medical terms."""

from regard.data import LinksConfig
from regard.models import GraphConfig
from regard.tasks import LinkPredictionConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A graph Transformer that learns which term completes a triple of UMLS, such as (alga, isa, ?).

    regard train umls

    The other triples are the edges that it attends along; a relation is a factor of each feature, as in DistMult.
    """
    return Experiment(
        model=GraphConfig(layers=2, heads=8, width=64, dropout=0.2),
        data=LinksConfig(source="umls", batch=256),
        task=LinkPredictionConfig(),
        train=TrainConfig(steps=1000, optimizer=AdamWConfig(lr=3e-3), evaluate_every=200, save_every=None),
    )
