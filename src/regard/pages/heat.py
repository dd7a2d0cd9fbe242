"""Series over time with the weight of each of their parts as heat behind them, as one SVG file."""

from collections.abc import Sequence

from regard.pages.svg import moved, picture, rectangle, tag, text

WIDTH, HEIGHT, LEFT, TOP, GAP = 900, 110, 14, 20, 14  # of a panel, in pixels
STRONGEST = 0.5  # opacity of the part with the largest weight


def series_picture(series: Sequence[Sequence[float]], weights: Sequence[Sequence[float]], names: Sequence[str]) -> str:
    """A panel for each row of ``weights`` [R, N], its N parts in order; with one row, all series are in its panel."""
    shown = [[one] for one in series] if len(weights) > 1 else [list(series)]
    titles = names if len(names) == len(shown) else [", ".join(names)] * len(shown)
    panels = [
        moved(LEFT, TOP + number * (HEIGHT + TOP + GAP), _panel(lines, heat, title))
        for number, (lines, heat, title) in enumerate(zip(shown, weights, titles, strict=False))
    ]
    about = f"{len(series)} series of {len(series[0])} points; the darker a part, the more attention it gets"
    return picture("Attention over the series", about, WIDTH, TOP + len(panels) * (HEIGHT + TOP + GAP), panels)


def _panel(lines: Sequence[Sequence[float]], heat: Sequence[float], title: str) -> str:
    """Lines over their parts; the weights are those relative to the largest."""
    width, most = WIDTH - 2 * LEFT, max(heat) or 1.0
    part = width / len(heat)
    about = f"the largest weight is {most:.3g}, and {1 / len(heat):.3g} would be even"
    parts = [text(f"{title}: {about}" if title else about, 0, -6, "soft")]
    for place, weight in enumerate(heat):
        opacity = round(STRONGEST * weight / most, 3)
        parts.append(rectangle("ink", part, HEIGHT, x=place * part, y=0, fill_opacity=opacity))
    low, high = min(min(line) for line in lines), max(max(line) for line in lines)
    for number, line in enumerate(lines):
        across, down = width / max(1, len(line)), HEIGHT / ((high - low) or 1)
        points = "L".join(f"{(x + 0.5) * across:.1f} {(high - y) * down:.1f}" for x, y in enumerate(line))
        parts.append(tag("path", class_=f"line c{number % 8}", d=f"M{points}"))
    return "".join(parts)
