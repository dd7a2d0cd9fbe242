"""A plain recurrent network (Elman's tanh cell) on Shakespeare's plays, character by character."""

from dataclasses import replace
from typing import Any

from regard.recipes import shakespeare_gru
from regard.train import Experiment


def recipe() -> Experiment:
    """A plain recurrent network (Elman's tanh cell) on Shakespeare's plays, character by character.

    regard train shakespeare-rnn

    Two layers of tanh cells, added to their inputs, with RMSNorm before each. Everything else is as in shakespeare-gru.
    """
    experiment = shakespeare_gru.recipe()
    model: Any = experiment.model
    return replace(experiment, model=replace(model, cell="rnn"))
