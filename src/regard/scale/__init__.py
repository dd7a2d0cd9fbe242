"""Scaling laws: a ladder of sizes, a fitted law, and its prediction for a larger model, tested by training that."""

from regard.scale.ladder import Ladder, Rung, ladder
from regard.scale.law import FittedLaw, Interval, Law, Point, fit
from regard.scale.page import write_page
from regard.scale.test import ScaleResult, TrainedRung, scale

__all__ = [
    "FittedLaw",
    "Interval",
    "Ladder",
    "Law",
    "Point",
    "Rung",
    "ScaleResult",
    "TrainedRung",
    "fit",
    "ladder",
    "scale",
    "write_page",
]
