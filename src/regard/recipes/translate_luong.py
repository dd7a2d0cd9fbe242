"""Luong's attention."""

from dataclasses import replace
from typing import Any

from regard.models import LuongConfig
from regard.recipes import translate_bahdanau
from regard.train import Experiment


def recipe() -> Experiment:
    """Luong's model: multiplicative attention from the decoder's current state, with input feeding.

    regard train translate-luong

    Everything else is as in translate-bahdanau.
    """
    experiment = translate_bahdanau.recipe()
    model: Any = experiment.model
    return replace(experiment, model=replace(model, attention=LuongConfig()))
