"""Three state-space layers and one of attention, on Shakespeare's plays, character by character."""

from dataclasses import replace

from regard.recipes import shakespeare_ssm
from regard.train import Experiment


def recipe() -> Experiment:
    """Three state-space layers and one of attention, on Shakespeare's plays, character by character.

    regard train shakespeare-hybrid

    As shakespeare-ssm, with softmax attention in every fourth layer (--model.global_every).
    """
    return replace(shakespeare_ssm.recipe(), model=replace(shakespeare_ssm.MODEL, global_every=4))
