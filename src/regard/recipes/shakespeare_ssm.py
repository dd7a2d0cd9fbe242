"""A state-space model, S4D, of Shakespeare's plays, character by character."""

from dataclasses import replace

from regard.models import GPTConfig
from regard.nn.mixers import S4DConfig
from regard.nn.positions.position import NoPositionConfig
from regard.recipes import shakespeare
from regard.train import Experiment

MODEL: GPTConfig = replace(shakespeare.MODEL, attention=S4DConfig(), position=NoPositionConfig())


def recipe() -> Experiment:
    """A state-space model, S4D, of Shakespeare's plays, character by character.

    regard train shakespeare-ssm

    The recipe shakespeare with diagonal state-space layers in the place of attention, and without positions.
    """
    return replace(shakespeare.recipe(), model=MODEL)
