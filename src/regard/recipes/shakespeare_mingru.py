"""A minimal GRU of Shakespeare's plays, character by character."""

from dataclasses import replace

from regard.nn.mixers import MinGRUConfig
from regard.recipes import shakespeare_ssm
from regard.train import Experiment


def recipe() -> Experiment:
    """A minimal GRU of Shakespeare's plays, character by character.

    regard train shakespeare-mingru

    As shakespeare-ssm, with other layers.
    """
    base = shakespeare_ssm.recipe()
    return replace(base, model=replace(shakespeare_ssm.MODEL, attention=MinGRUConfig()))
