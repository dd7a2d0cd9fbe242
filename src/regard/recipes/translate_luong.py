"""Luong's attention."""

from dataclasses import replace

from regard.models import LuongConfig
from regard.recipes import translate_bahdanau
from regard.train import Experiment


def recipe() -> Experiment:
    """Luong's model: multiplicative attention from the decoder's current state, with input feeding.

    regard train translate-luong

    Everything else is as in translate-bahdanau.
    """
    return replace(translate_bahdanau.recipe(), model=replace(translate_bahdanau.MODEL, attention=LuongConfig()))
