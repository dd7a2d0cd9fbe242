"""A small graph Transformer that learns which club each member of a karate club joined."""

from regard.data import NodesConfig
from regard.models import GraphConfig
from regard.tasks import NodeClassificationConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A graph Transformer of two layers that learns the clubs of Zachary's karate club in a few seconds.

    regard train karate

    It sees who is whose friend, and the clubs of all members but those held out.
    """
    return Experiment(
        model=GraphConfig(layers=2, heads=4, width=32, dropout=0.3),
        data=NodesConfig(source="karate", batch=34),
        task=NodeClassificationConfig(),
        train=TrainConfig(steps=100, optimizer=AdamWConfig(lr=3e-3), evaluate_every=50, save_every=None),
    )
