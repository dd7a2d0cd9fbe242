"""An image, and the same with the patches that get little attention faded, as one SVG file."""

from collections.abc import Sequence
from itertools import groupby

from regard.pages.svg import moved, picture, tag, text

WIDTH, SIDE, GAP, TOP = 1000, 320, 20, 24  # in pixels; SIDE is that of each of the two
FADED = 0.85  # the opacity of the white over a patch without attention


def image_picture(colors: Sequence[Sequence[str]], weights: Sequence[float], columns: int) -> str:
    """An image of ``colors`` [Y][X], such as "#ff0000", and the weights of its patches row by row."""
    rows, most, height = len(weights) // columns, max(weights) or 1.0, SIDE * len(colors) / len(colors[0])
    across, down, size = SIDE / columns, height / rows, SIDE / len(colors[0])
    image = []
    for y, line in enumerate(colors):
        x = 0
        for color, equal in groupby(line):
            count = len(list(equal))
            image.append(_box(x * size, y * size, count * size, size, color))
            x += count
    fade = [
        _box(n % columns * across, n // columns * down, across, down, "#fff", round(FADED * (1 - weight / most), 3))
        for n, weight in enumerate(weights)
    ]
    note = f"the largest weight of a patch is {most:.3g}, and {1 / len(weights):.3g} would be even"
    panels = (text(note, 0, TOP - 8, "soft"), *(moved(0, TOP, one) for one in image))
    second = moved(SIDE + GAP, TOP, "".join((*image, *fade)))
    about = "an image, and the same with patches the more faded, the less attention they get"
    return picture("Attention over the image", about, WIDTH, TOP + height, (*panels, second))


def _box(x: float, y: float, width: float, height: float, fill: str, opacity: float | None = None) -> str:
    edges = "crispEdges" if opacity is None else None
    return tag("rect", x=x, y=y, width=width, height=height, fill=fill, fill_opacity=opacity, shape_rendering=edges)
