"""A small graph Transformer that learns which club each member of a karate club joined."""

from regard.data import NodesConfig
from regard.models import GraphConfig
from regard.tasks import NodeClassificationConfig
from regard.train import AdamWConfig, Experiment, TrainConfig


def recipe() -> Experiment:
    """A graph Transformer of two layers that learns the clubs of Zachary's karate club in a few seconds.

    regard train karate

    It sees who is whose friend, and the clubs of all members but those held out. A member has no vector of its own,
    which would memorize its club, but is described by its place in the graph.
    """
    place = NodesConfig(
        source="karate", identity=False, laplacian=2, random_signs=False, walks=8, degree=True, batch=34
    )
    return Experiment(
        model=GraphConfig(layers=2, heads=4, width=32, dropout=0.3),
        data=place,
        task=NodeClassificationConfig(),
        train=TrainConfig(steps=50, optimizer=AdamWConfig(lr=3e-3), evaluate_every=25, save_every=None),
    )
