"""A character model of molecules: SMILES as text."""

from dataclasses import replace

from regard.data import TextConfig
from regard.recipes import shakespeare
from regard.train import Experiment


def recipe() -> Experiment:
    """The `shakespeare` model on 1,584,663 molecules written as SMILES; it generates new ones.

    regard train molecules

    A molecule is a line, so `regard generate RUN` writes one per line.
    """
    return replace(shakespeare.recipe(), data=TextConfig(source="molecules", batch=8))
