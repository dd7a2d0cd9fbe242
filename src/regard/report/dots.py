"""Named values as dots on one line each: for things that have a name and no order."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from regard.report.svg import tick, ticks

ROW, LETTER = 24, 7  # pixels


def dots(values: Sequence[tuple[str, float]], label: str, title: str, width: int, line: float | None = None) -> str:
    """One row a name, in the order given; ``line`` marks a value to compare with."""
    if not values:
        return ""
    everything = [value for _, value in values] + ([] if line is None else [line])
    marks = ticks(min(everything), max(everything), 5)
    left = min(width // 2, 20 + LETTER * max(len(name) for name, _ in values))
    right, top = 70, 42  # the label has a line of its own above the numbers
    height = top + ROW * len(values) + 12

    def across(x: float) -> float:
        return left + (x - marks[0]) / ((marks[-1] - marks[0]) or 1) * (width - left - right)

    described = "; ".join(f"{name}: {value:.4g}" for name, value in values)
    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img">']
    parts.append(f"<title>{escape(title)}</title><desc>{escape(label)}. {escape(described)}</desc>")
    parts.append(f'<text class="name" x="4" y="12">{escape(label)}</text>')
    for mark in marks:
        parts.append(f'<path class="grid" d="M{across(mark):.1f} {top - 4}V{height - 8}"/>')
        parts.append(f'<text x="{across(mark):.1f}" y="{top - 8}" text-anchor="middle">{tick(mark)}</text>')
    if line is not None:
        parts.append(f'<path class="line c7 faint" d="M{across(line):.1f} {top - 4}V{height - 8}"/>')
    for i, (name, value) in enumerate(values):
        y = top + ROW * i + ROW / 2
        parts.append(f'<text x="{left - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<g class="dots c0"><circle cx="{across(value):.1f}" cy="{y:.1f}" r="4.5"/></g>')
        parts.append(f'<text x="{across(value) + 9:.1f}" y="{y + 4:.1f}">{value:.3f}</text>')
    return "".join([*parts, "</svg>"])
