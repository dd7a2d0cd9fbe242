"""How often to save a checkpoint, so that saving and repeated work after failures cost least."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from regard.plan.hardware import HOURS_BETWEEN_FAILURES, WRITE


class Checkpoints(NamedTuple):
    """Saving and failures of a training."""

    save: float  # seconds that a checkpoint takes
    failures: float  # mean seconds between failures of any rank
    interval: float  # seconds between checkpoints
    lost: float  # share of the time that saving and repeated work cost


def checkpoints(stored: float, ranks: int) -> Checkpoints:
    """The best interval for ranks that write ``stored`` bytes each, all at a time.

    Daly (2006), equation 37, of which Young's (1974) sqrt(2 δ M) is the first term; the cost to first order is
    δ / interval + interval / 2M.
    """
    save, failures = stored / WRITE, HOURS_BETWEEN_FAILURES * 3600 / ranks
    if save >= 2 * failures:  # there the formula ends
        return Checkpoints(save, failures, failures, 1.0)
    half = save / (2 * failures)
    interval = sqrt(2 * save * failures) * (1 + sqrt(half) / 3 + half / 9) - save
    return Checkpoints(save, failures, interval, min(1.0, save / interval + interval / (2 * failures)))
