"""A selective state-space model, as Mamba, of Shakespeare's plays, character by character."""

from dataclasses import replace

from regard.nn.mixers import MambaConfig
from regard.recipes import shakespeare_ssm
from regard.train import Experiment


def recipe() -> Experiment:
    """A selective state-space model, as Mamba, of Shakespeare's plays, character by character.

    regard train shakespeare-mamba

    As shakespeare-ssm, with other layers.
    """
    base = shakespeare_ssm.recipe()
    return replace(base, model=replace(shakespeare_ssm.MODEL, attention=MambaConfig(expand=1.0)))
