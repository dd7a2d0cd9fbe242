"""A graph attention network that learns the topics of papers from their citations alone."""

from regard.attention import GATConfig
from regard.data import NodesConfig
from regard.models import GraphConfig
from regard.tasks import NodeClassificationConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A graph Transformer with additive scores that learns the classes of PubMed's 19,717 papers from 44,324 citations.

    regard train pubmed

    It knows no word of a paper: each has a learned vector. A step reads the whole graph.
    """
    return Experiment(
        model=GraphConfig(layers=2, heads=8, width=64, dropout=0.5, attention=GATConfig()),
        data=NodesConfig(source="pubmed", validation=0.2, test=0.2, batch=11830),
        task=NodeClassificationConfig(),
        train=TrainConfig(steps=100, optimizer=AdamWConfig(lr=1e-2), evaluate_every=20, save_every=None),
    )
