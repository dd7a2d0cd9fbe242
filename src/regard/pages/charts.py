"""Line charts and dot plots as SVG text."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from regard.pages.numbers import tick
from regard.pages.svg import tag, text

COLORS = 8
TOP, RIGHT, BOTTOM = 30, 14, 36  # margins of a line chart, pixels
ROW, LETTER = 24, 7  # of a dot plot: height of a row, width of a letter
DOTS_TOP = 42  # of a dot plot, where the label is above the ticks

Scale = Callable[[float], float]  # a value to pixels


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0  # from COLORS on, the line is dashed
    marks: bool = False  # a dot at every point
    faint: bool = False  # behind the others
    band: Sequence[tuple[float, float, float]] = ()  # (x, low, high)

    @property
    def css_class(self) -> str:
        return f"c{self.color % COLORS}{' dashed' if self.color >= COLORS else ''}"


@dataclass(frozen=True)
class Axes:
    """Labels and limits of the axes. A limit that is None follows from the data."""

    x: str
    y: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    x_low: float | None = None
    x_high: float | None = None


def line_chart(series: Sequence[Series], axes: Axes, width: int, height: int, title: str) -> str:
    """Lines over common axes; an empty string if there is nothing to draw."""
    shown = [s for s in series if s.points]
    xs = [x for s in shown for x, _ in s.points]
    ys = [y for s in shown for _, y in s.points] + [y for s in shown for _, *ends in s.band for y in ends]
    if axes.log:
        ys = [y for y in ys if y > 0]
    if not xs or not ys:
        return ""
    x0 = min(xs) if axes.x_low is None else axes.x_low
    x1 = max(xs) if axes.x_high is None else axes.x_high
    whole = all(float(x).is_integer() for x in xs)  # layers and steps are whole numbers
    x_ticks = [x for x in ticks(x0, x1, max(4, width // 90)) if x0 <= x <= x1 and (not whole or x.is_integer())]
    low = min(ys) if axes.low is None else axes.low
    high = max(ys) if axes.high is None else axes.high
    y_ticks = log_ticks(low, high) if axes.log else ticks(low, high, max(2, height // 48))
    left = max(46, 14 + max(len(tick(y)) for y in y_ticks) * 7)
    across = _scale(x0, x1, left, width - RIGHT)
    down = _scale(y_ticks[0], y_ticks[-1], height - BOTTOM, TOP, log=axes.log)
    parts = []
    for y in y_ticks:
        parts.append(tag("path", class_="grid", d=f"M{left} {down(y):.1f}H{width - RIGHT}"))
        parts.append(_label(tick(y), left - 6, down(y) + 4, "y", down(y), "end"))
    for x in x_ticks:
        anchor = "end" if across(x) > width - RIGHT - 16 else "middle"
        parts.append(_label(tick(x), across(x), height - BOTTOM + 16, "x", across(x), anchor))
    parts.append(text(axes.y, 4, 12, "name"))
    parts.append(text(axes.x, width - RIGHT, height - 3, "name", "end"))
    parts += [_line(s, across, down) for s in sorted(shown, key=lambda s: not s.faint)]
    plot = [x0, x1, left, width - RIGHT, y_ticks[0], y_ticks[-1], height - BOTTOM, TOP, axes.log]
    return _chart(width, height, title, describe(shown, axes), parts, json.dumps(plot), axes.x)


def dot_plot(values: Sequence[tuple[str, float]], label: str, title: str, width: int, line: float | None = None) -> str:
    """Named values as dots, one row per name in the given order; ``line`` marks a value to compare with."""
    if not values:
        return ""
    everything = [value for _, value in values] + ([] if line is None else [line])
    marks = ticks(min(everything), max(everything), 5)
    left = min(width // 2, 20 + LETTER * max(len(name) for name, _ in values))
    top, height = DOTS_TOP, dot_plot_height(len(values))
    across = _scale(marks[0], marks[-1], left, width - 70)
    parts = [text(label, 4, 12, "name")]
    for mark in marks:
        parts.append(tag("path", class_="grid", d=f"M{across(mark):.1f} {top - 4}V{height - 8}"))
        parts.append(text(tick(mark), across(mark), top - 8, anchor="middle"))
    if line is not None:
        parts.append(tag("path", class_="line c7 faint", d=f"M{across(line):.1f} {top - 4}V{height - 8}"))
    for i, (name, value) in enumerate(values):
        y = top + ROW * i + ROW / 2
        parts.append(text(name, left - 12, y + 4, anchor="end"))
        parts.append(tag("g", tag("circle", cx=across(value), cy=y, r=4.5), class_="dots c0"))
        parts.append(text(f"{value:.3f}", across(value) + 9, y + 4))
    described = "; ".join(f"{name}: {value:.4g}" for name, value in values)
    return _chart(width, height, title, f"{label}. {described}", parts)


def dot_plot_height(rows: int) -> int:
    """The height of a dot plot."""
    return DOTS_TOP + ROW * rows + 12


def describe(series: Sequence[Series], axes: Axes) -> str:
    """The ends of every line in words, for screen readers."""
    ends = [
        f"{s.name}: from {s.points[0][1]:.4g} at {tick(s.points[0][0])} to {s.points[-1][1]:.4g} at "
        f"{tick(s.points[-1][0])}"
        for s in series
    ]
    return f"{axes.y} over {axes.x}. " + "; ".join(ends)


def thin(points: Sequence[tuple[float, float]], most: int = 300) -> list[tuple[float, float]]:
    """A curve in at most about ``most`` points, each the mean of its neighbors; both ends stay."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // (most - 2))
    inner = points[1:-1]
    groups = [inner[i : i + size] for i in range(0, len(inner), size)]
    means = [(math.fsum(x for x, _ in g) / len(g), math.fsum(y for _, y in g) / len(g)) for g in groups]
    return [points[0], *means, points[-1]]


def ticks(low: float, high: float, most: int) -> list[float]:
    """About ``most`` round numbers from at most ``low`` to at least ``high``.

    >>> ticks(1.37, 4.2, 6)
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    span = (high - low) or abs(high) or 1.0
    raw = span / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten around the data; also 2 and 5 times those over few decades, only every n-th over many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1.0,) if last - first > 2 else (1.0, 2.0, 5.0)
    every = max(1, -(-(last - first) // 7))  # at most nine marks
    first = first // every * every
    marks = [f * 10.0**p for p in range(first, last + every, every) for f in factors]
    begin = max((i for i, m in enumerate(marks) if m <= low), default=0)
    end = next((i for i, m in enumerate(marks) if m >= high), len(marks) - 1)
    return marks[begin : max(end, begin + 1) + 1]


def _scale(low: float, high: float, start: float, end: float, log: bool = False) -> Scale:
    """Values from ``low`` to ``high`` to pixels from ``start`` to ``end``; a log axis ends at ``low``."""
    if log:
        linear = _scale(math.log10(low), math.log10(high), start, end)
        return lambda value: linear(math.log10(max(value, low)))
    return lambda value: start + (value - low) / ((high - low) or 1) * (end - start)


def _line(s: Series, across: Scale, down: Scale) -> str:
    def at(x: float, y: float) -> str:
        return f"{across(x):.1f} {down(y):.1f}"

    parts = []
    if s.band:
        edge = [at(x, high) for x, _, high in s.band] + [at(x, low) for x, low, _ in reversed(s.band)]
        parts.append(tag("path", class_=f"band {s.css_class}", d=f"M{'L'.join(edge)}Z"))
    if len(s.points) > 1:
        faint = " faint" if s.faint else ""
        parts.append(
            tag(
                "path",
                class_=f"line {s.css_class}{faint}",
                data_name=s.name,
                d="M" + "L".join(at(*p) for p in s.points),
            )
        )
    if s.marks or len(s.points) == 1:
        dots = "".join(tag("circle", cx=across(x), cy=down(y), r=3.2) for x, y in s.points)
        parts.append(tag("g", dots, class_=f"dots {s.css_class}"))
    return "".join(parts)


def _label(content: str, x: float, y: float, axis: str, at: float, anchor: str) -> str:
    """A number beside an axis; ``at`` is its place on the axis, for the script that zooms."""
    return tag("text", escape(content), class_=axis, x=x, y=y, text_anchor=anchor, data_at=at)


def _chart(
    width: int,
    height: int,
    title: str,
    description: str,
    parts: Sequence[str],
    plot: str | None = None,
    x: str | None = None,
) -> str:
    words = tag("title", escape(title)) + tag("desc", escape(description))
    return tag(
        "svg",
        words + "".join(parts),
        class_="chart",
        viewBox=f"0 0 {width} {height}",
        role="img",
        data_plot=plot,
        data_x=x,
    )
