"""One vector between two recurrent networks."""

from dataclasses import replace

from regard.models import FixedConfig
from regard.recipes import translate_bahdanau
from regard.train import Experiment


def recipe() -> Experiment:
    """A GRU encoder and decoder with one vector between them: the bottleneck that attention was made for.

    regard train translate-fixed

    Everything else is as in translate-bahdanau.
    """
    return replace(translate_bahdanau.recipe(), model=replace(translate_bahdanau.MODEL, attention=FixedConfig()))
