"""Loss curves as text, for a terminal."""

from collections.abc import Sequence
from itertools import pairwise

from regard.runs.disk import JsonObject

HEIGHTS = "▁▂▃▄▅▆▇█"
WIDTH = 60
MARK = "●"
Points = Sequence[tuple[float, float]]
# The dots of a braille character, by row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def curve(metrics: Sequence[JsonObject]) -> str:
    """One line per metric: name, first value, sparkline and last value.

    >>> print(curve([{"step": 1, "loss": 4.0}, {"step": 2, "loss": 2.0}]))
    loss            4.0000 █▁ 2.0000
    """
    lines = []
    for name in ("loss", "validation_loss"):
        values = [record[name] for record in metrics if isinstance(record.get(name), float)]
        if values:
            lines.append(f"{name:15} {values[0]:.4f} {sparkline(values)} {values[-1]:.4f}")
    return "\n".join(lines)


def sparkline(values: Sequence[float]) -> str:
    """Values as at most ``WIDTH`` bars, averaged, between their minimum and maximum."""
    count = min(WIDTH, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(HEIGHTS[round((mean - low) / span * (len(HEIGHTS) - 1))] for mean in means)


def plot(curve: Points, marks: Points, width: int, height: int) -> list[str]:
    """A curve of (x, y) in braille dots, and marked points, on common axes: lines of text.

    The curve is averaged in each column of dots; a character has two.

    >>> print("\\n".join(line.rstrip() for line in plot([(i, 8.0 - i) for i in range(9)], [(8, 1.0)], 14, 3)))
     8.00 ┤⠑⢄
          │  ⠑⢄
     0.00 ┤    ⠑●
          0     8
    """
    if not curve and not marks:
        return []
    room = max(4, width - 8)
    everything = [*curve, *marks]
    x0, x1 = min(x for x, _ in everything), max(x for x, _ in everything)
    columns: dict[int, list[float]] = {}
    for x, y in curve:
        columns.setdefault(_place(x, x0, x1, 2 * room), []).append(y)
    means = {column: sum(ys) / len(ys) for column, ys in columns.items()}
    ys = [*means.values(), *(y for _, y in marks)]
    y0, y1 = min(ys), max(ys)
    cells = [[0] * room for _ in range(height)]
    before: tuple[int, int] | None = None
    for column in sorted(means):
        here = (column, _place(-means[column], -y1, -y0, 4 * height))
        for x, y in _between(before or here, here):
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
        before = here
    rows = [[chr(0x2800 + cell) if cell else " " for cell in row] for row in cells]
    for x, y in marks:
        rows[_place(-y, -y1, -y0, height)][_place(x, x0, x1, room)] = MARK
    labels = {0: f"{y1:5.2f} ┤", height - 1: f"{y0:5.2f} ┤"}
    drawn = [labels.get(i, "      │") + "".join(row) for i, row in enumerate(rows)]
    first, last = f"{x0:,.0f}", f"{x1:,.0f}"
    return [*drawn, f"      {first}{last:>{max(1, room + 1 - len(first))}}"]


def _place(value: float, low: float, high: float, count: int) -> int:
    """The index of the bin of a value, of ``count`` equal bins between low and high."""
    return min(count - 1, int((value - low) / ((high - low) or 1.0) * count))


def _between(a: tuple[int, int], b: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a straight line, both ends included."""
    steps = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1)
    return [
        (round(a[0] + (b[0] - a[0]) * i / steps), round(a[1] + (b[1] - a[1]) * i / steps)) for i in range(steps + 1)
    ]
