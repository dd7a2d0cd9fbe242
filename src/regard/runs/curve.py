"""A run's curves as lines of text, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

HEIGHTS = "▁▂▃▄▅▆▇█"
WIDTH = 60


def curve(metrics: Sequence[dict[str, Any]]) -> str:
    """One line per measure: its name, first value, shape and last value.

    >>> print(curve([{"step": 1, "loss": 4.0}, {"step": 2, "loss": 2.0}]))
    loss            4.0000 █▁ 2.0000
    """
    lines = []
    for name in ("loss", "validation_loss"):
        values = [record[name] for record in metrics if isinstance(record.get(name), float)]
        if values:
            lines.append(f"{name:15} {values[0]:.4f} {sparkline(values)} {values[-1]:.4f}")
    return "\n".join(lines)


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Values as bars between their least and greatest, averaged into at most ``width`` of them."""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(HEIGHTS[round((mean - low) / span * (len(HEIGHTS) - 1))] for mean in means)
