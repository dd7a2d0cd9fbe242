"""A plain recurrent network (Elman's tanh cell) on Shakespeare's plays, character by character."""

from dataclasses import replace

from regard.recipes import shakespeare_gru
from regard.train import Experiment


def recipe() -> Experiment:
    """A plain recurrent network (Elman's tanh cell) on Shakespeare's plays, character by character.

    regard train shakespeare-rnn

    Two layers of tanh cells, added to their inputs, with RMSNorm before each. Everything else is as in shakespeare-gru.
    """
    return replace(shakespeare_gru.recipe(), model=replace(shakespeare_gru.MODEL, cell="rnn"))
