"""Hyperparameter search in stages: learning rate, warm-up, batch, dropout, then architecture."""

from regard.tune.page import write_page
from regard.tune.result import DefaultComparison, Stage, Tried, TuneResult
from regard.tune.search import tune
from regard.tune.space import STAGES, OptionRange, Options

__all__ = [
    "STAGES",
    "DefaultComparison",
    "OptionRange",
    "Options",
    "Stage",
    "Tried",
    "TuneResult",
    "tune",
    "write_page",
]
