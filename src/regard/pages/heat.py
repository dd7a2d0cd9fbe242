"""Series over time, or an image, with the weight of each of its parts as heat, as one SVG file."""

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.pages.svg import moved, picture, png, rectangle, tag, text

WIDTH, HEIGHT, LEFT, TOP, GAP = 900, 110, 14, 20, 14  # of a panel, in pixels
STRONGEST = 0.5  # opacity of the part with the largest weight
SIDE, RED = 320, (214, 40, 40)  # width of an image in pixels; the color of heat


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


def image_picture(pixels: NDArray[np.uint8], weights: NDArray[np.floating]) -> str:
    """An image [Y, X, M] of one or three colors, by itself and with the weights of its parts [rows, columns] in red."""
    rows, columns = pixels.shape[:2]
    share = (weights / weights.max()).repeat(rows // weights.shape[0], 0).repeat(columns // weights.shape[1], 1)
    height, panels, colored = SIDE * rows / columns, [], pixels.repeat(3 // pixels.shape[2], 2).astype(np.float64)
    heated = colored + STRONGEST * share[:, :, None] * (np.array(RED) - colored)
    even = f"mean attention: largest weight {weights.max():.3g}, uniform {1 / weights.size:.3g}"
    for number, (shown, title) in enumerate(((colored, "the image"), (heated, even))):
        data = base64.b64encode(png([row.tobytes() for row in shown.astype(np.uint8)], 3)).decode()
        href = f"data:image/png;base64,{data}"
        drawn = tag("image", None, href=href, width=SIDE, height=height, style="image-rendering:pixelated")
        panels.append(moved(LEFT + number * (SIDE + LEFT), TOP, text(title, 0, -6, "soft") + drawn))
    about = f"an image of {rows} x {columns} pixels; the redder a part of the second, the more attention it gets"
    return picture("Attention over the image", about, 2 * SIDE + 3 * LEFT, TOP + height + LEFT, panels)


def _panel(lines: Sequence[Sequence[float]], heat: Sequence[float], title: str) -> str:
    """Lines over their parts; the weights are those relative to the largest."""
    width, most = WIDTH - 2 * LEFT, max(heat) or 1.0
    part = width / len(heat)
    about = f"largest weight {most:.3g}, uniform {1 / len(heat):.3g}"
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
