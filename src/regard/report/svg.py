"""Charts and maps as SVG text. Colours are names of CSS variables, so that one picture serves light, dark and paper."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from regard.report.numbers import tick

COLOURS = 8


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    marks: bool = False  # a dot at every point
    faint: bool = False  # behind the others
    band: Sequence[tuple[float, float, float]] = ()  # (x, low, high)


@dataclass(frozen=True)
class Axes:
    """What the axes say, and how far they go."""

    x: str
    y: str
    log: bool = False
    low: float | None = None  # the y axis begins here; by default where the data does
    high: float | None = None
    x_low: float | None = None
    x_high: float | None = None


def chart(series: Sequence[Series], axes: Axes, width: int, height: int, title: str) -> str:
    """Lines over common axes."""
    shown = [s for s in series if s.points]
    xs = [x for s in shown for x, _ in s.points]
    ys = [y for s in shown for _, y in s.points] + [y for s in shown for _, *ends in s.band for y in ends]
    if axes.log:
        ys = [y for y in ys if y > 0]
    if not xs or not ys:
        return ""
    x0 = min(xs) if axes.x_low is None else axes.x_low
    x1 = max(xs) if axes.x_high is None else axes.x_high
    whole = all(float(x).is_integer() for x in xs)  # layers and steps have no halves
    x_ticks = [x for x in ticks(x0, x1, max(4, width // 90)) if x0 <= x <= x1 and (not whole or x.is_integer())]
    low = min(ys) if axes.low is None else axes.low
    high = max(ys) if axes.high is None else axes.high
    y_ticks = log_ticks(low, high) if axes.log else ticks(low, high, max(2, height // 48))
    y0, y1 = y_ticks[0], y_ticks[-1]
    left = max(46, 14 + max(len(tick(y)) for y in y_ticks) * 7)
    top, right, bottom = 30, 14, 36

    def across(x: float) -> float:
        return left + (x - x0) / ((x1 - x0) or 1) * (width - left - right)

    def down(y: float) -> float:
        if axes.log:
            y, a, b = math.log10(max(y, y0)), math.log10(y0), math.log10(y1)
        else:
            a, b = y0, y1
        return top + (b - y) / ((b - a) or 1) * (height - top - bottom)

    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img">']
    parts.append(f"<title>{escape(title)}</title><desc>{escape(describe(shown, axes))}</desc>")
    for y in y_ticks:
        parts.append(f'<path class="grid" d="M{left} {down(y):.1f}H{width - right}"/>')
        parts.append(f'<text x="{left - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{tick(y)}</text>')
    for x in x_ticks:
        anchor = "end" if across(x) > width - right - 16 else "middle"
        parts.append(f'<text x="{across(x):.1f}" y="{height - bottom + 16}" text-anchor="{anchor}">{tick(x)}</text>')
    parts.append(f'<text class="name" x="4" y="12">{escape(axes.y)}</text>')
    parts.append(f'<text class="name" x="{width - right}" y="{height - 3}" text-anchor="end">{escape(axes.x)}</text>')
    for s in sorted(shown, key=lambda s: not s.faint):
        parts.append(_drawn(s, across, down))
    return "".join([*parts, "</svg>"])


def _drawn(s: Series, across, down) -> str:
    colour = f"c{s.colour % COLOURS}{' again' if s.colour >= COLOURS else ''}"
    parts = []
    if s.band:
        edge = [f"{across(x):.1f} {down(high):.1f}" for x, _, high in s.band]
        edge += [f"{across(x):.1f} {down(low):.1f}" for x, low, _ in reversed(s.band)]
        parts.append(f'<path class="band {colour}" d="M{"L".join(edge)}Z"/>')
    if len(s.points) > 1:
        line = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in s.points)
        parts.append(f'<path class="line {colour}{" faint" if s.faint else ""}" d="M{line}"/>')
    if s.marks or len(s.points) == 1:
        dots = "".join(f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3.2"/>' for x, y in s.points)
        parts.append(f'<g class="dots {colour}">{dots}</g>')
    return "".join(parts)


def describe(series: Sequence[Series], axes: Axes) -> str:
    """A chart in words, for those who do not see it."""
    ends = [
        f"{s.name}: from {s.points[0][1]:.4g} at {tick(s.points[0][0])} to {s.points[-1][1]:.4g} at "
        f"{tick(s.points[-1][0])}"
        for s in series
    ]
    return f"{axes.y} over {axes.x}. " + "; ".join(ends)


def thin(points: Sequence[tuple[float, float]], most: int = 300) -> list[tuple[float, float]]:
    """A curve in at most about `most` points, each the mean of its neighbours; both ends stay."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // (most - 2))
    inner = points[1:-1]
    groups = [inner[i : i + size] for i in range(0, len(inner), size)]
    means = [(math.fsum(x for x, _ in g) / len(g), math.fsum(y for _, y in g) / len(g)) for g in groups]
    return [points[0], *means, points[-1]]


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers whose first is at most `low` and whose last is at least `high`, about `most` of them.

    >>> ticks(1.37, 4.2, 6)
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    span = (high - low) or abs(high) or 1.0
    raw = span / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float, most: int = 9) -> list[float]:
    """Powers of ten around the data; 1, 2 and 5 times those where there would be few, every n-th where many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1.0,) if last - first > 2 else (1.0, 2.0, 5.0)
    every = max(1, -(-(last - first) // (most - 2)))
    first = first // every * every
    marks = [f * 10.0**p for p in range(first, last + every, every) for f in factors]
    begin = max((i for i, m in enumerate(marks) if m <= low), default=0)
    end = next((i for i, m in enumerate(marks) if m >= high), len(marks) - 1)
    return marks[begin : max(end, begin + 1) + 1]


def png(rows: Sequence[bytes]) -> bytes:
    """A grey picture, one byte a pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def map_mask(name: str, weights: Sequence[bytes]) -> str:
    """Weights as a mask that maps of any size refer to: white lets the colour of the page's theme through."""
    data = base64.b64encode(png(weights)).decode()
    image = f'<image href="data:image/png;base64,{data}" width="1" height="1" preserveAspectRatio="none"/>'
    box = 'maskUnits="objectBoundingBox" maskContentUnits="objectBoundingBox" x="0" y="0" width="1" height="1"'
    return f'<mask id="{name}" {box}>{image}</mask>'


def small_map(name: str, title: str) -> str:
    """A map without letters."""
    return (
        f'<svg class="map" viewBox="0 0 100 100" role="img"><title>{escape(title)}</title>'
        '<rect class="ground" width="100" height="100"/>'
        f'<rect class="ink" width="100" height="100" mask="url(#{name})"/></svg>'
    )


def lettered_map(name: str, title: str, letters: Sequence[str]) -> str:
    """A map with the text on both axes: each row is a token that looks, each column one that is looked at."""
    cell, edge = 9, 14
    size = len(letters) * cell
    parts = [
        f'<svg class="map lettered" viewBox="0 0 {size + edge} {size + edge}" role="img"><title>{escape(title)}</title>'
    ]
    parts.append(f'<rect class="ground" x="{edge}" y="{edge}" width="{size}" height="{size}"/>')
    parts.append(f'<rect class="ink" x="{edge}" y="{edge}" width="{size}" height="{size}" mask="url(#{name})"/>')
    for i, letter in enumerate(letters):
        place = edge + i * cell + cell / 2
        shown = escape(letter)
        parts.append(f'<text x="{place}" y="{edge - 4}">{shown}</text>')
        parts.append(f'<text x="{edge - 7}" y="{place + 3}">{shown}</text>')
    return "".join([*parts, "</svg>"])
