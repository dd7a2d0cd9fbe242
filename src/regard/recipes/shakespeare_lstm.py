"""A two-layer LSTM on Shakespeare's plays, character by character."""

from dataclasses import replace

from regard.recipes import shakespeare_gru
from regard.train import Experiment


def recipe() -> Experiment:
    """A two-layer LSTM on Shakespeare's plays, character by character.

    regard train shakespeare-lstm

    Two LSTM layers, added to their inputs, with RMSNorm before each. Everything else is as in shakespeare-gru.
    Five minutes on one CPU core: 1.478 nats per character of held-out text.
    """
    return replace(shakespeare_gru.recipe(), model=replace(shakespeare_gru.MODEL, cell="lstm"))
