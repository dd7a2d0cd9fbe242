"""Hyperparameter search in stages: learning rate, warm-up, batch, dropout, then architecture."""

from regard.tune.page import write_page
from regard.tune.search import Comparison, Stage, Tried, TuneResult, tune
from regard.tune.space import STAGES, Options, Range

__all__ = ["STAGES", "Comparison", "Options", "Range", "Stage", "Tried", "TuneResult", "tune", "write_page"]
