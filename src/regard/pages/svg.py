"""SVG elements, attention maps and self-contained SVG files.

Colors are CSS variables, so one picture serves light, dark and print. A map is a gray PNG image, used as a mask over a
CSS color.
"""

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
CELL, EDGE = 9, 14  # of a labeled map: pixels of a cell and of the letters around it


def stylesheet(*names: str) -> str:
    """The style sheets of this folder with these names, joined."""
    return "".join((FOLDER / f"{name}.css").read_text(encoding="utf-8") for name in names)


def tag(name: str, content: str | None = None, **attributes: object) -> str:
    """An element. ``content`` is markup; attribute values are escaped, and those that are None are left out.

    >>> tag("text", "a", class_="soft", x=1.25, text_anchor="end")
    '<text class="soft" x="1.25" text-anchor="end">a</text>'
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    start = " ".join([name, *(f'{key}="{escape(_value(value))}"' for key, value in given.items())])
    return f"<{start}/>" if content is None else f"<{start}>{content}</{name}>"


def text(content: str, x: float, y: float, class_: str | None = None, anchor: str | None = None) -> str:
    """A line of text."""
    return tag("text", escape(content), class_=class_, x=x, y=y, text_anchor=anchor)


def moved(x: float, y: float, content: str) -> str:
    """Elements shifted to a place."""
    return tag("g", content, transform=f"translate({x:.0f} {y:.0f})")


def rectangle(class_: str, width: float, height: float, **attributes: object) -> str:
    """A rectangle; ``attributes`` may give its place, mask and opacity."""
    return tag("rect", None, class_=class_, **attributes, width=width, height=height)


def cell_paths(levels: Sequence[Sequence[int]], width: float, height: float, strongest: int) -> str:
    """Cells of a map, one path per level from 1 to ``strongest``; equal neighbors in a row are drawn as one."""
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(levels):
        start = 0
        for j in range(1, len(row) + 1):
            if j == len(row) or row[j] != row[start]:
                left = start * width
                run = f"M{left:.2f} {i * height:.2f}h{(j - start) * width:.2f}v{height:.2f}H{left:.2f}z"
                paths.setdefault(row[start], []).append(run)
                start = j
    levels_drawn = sorted(set(paths) - {0})
    return "".join(tag("path", class_="ink", fill_opacity=n / strongest, d="".join(paths[n])) for n in levels_drawn)


def png(rows: Sequence[bytes], colors: int = 1) -> bytes:
    """An image of one byte per pixel (gray) or of three (red, green, blue)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(rows[0]) // colors, len(rows), 8, colors - 1, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def define_map(name: str, weights: Sequence[bytes]) -> str:
    """Weights as an SVG mask that maps of any size refer to by ``name``: white lets the theme's color through."""
    data = base64.b64encode(png(weights)).decode()
    image = f'<image href="data:image/png;base64,{data}" width="1" height="1" preserveAspectRatio="none"/>'
    box = 'maskUnits="objectBoundingBox" maskContentUnits="objectBoundingBox" x="0" y="0" width="1" height="1"'
    return f'<mask id="{name}" {box}>{image}</mask>'


def attention_map(name: str, title: str, letters: Sequence[str] = ()) -> str:
    """A map; ``letters``, if given, is the text on both axes: a row is a query, a column a key."""
    longest = max(map(len, letters), default=0)
    size, edge = (len(letters) * CELL, EDGE + 6 * (longest - 1)) if letters else (100, 0)
    parts = tag("title", escape(title))
    for class_, mask in (("ground", None), ("ink", f"url(#{name})")):
        parts += rectangle(class_, size, size, x=edge, y=edge, mask=mask)
    for i, letter in enumerate(letters):
        place = edge + i * CELL + CELL / 2
        upright = f"rotate(-90 {place + 3} {edge - 4})" if longest > 1 else None
        across = place + 3 if upright else place
        begin = "text-anchor:start" if upright else None
        parts += tag("text", escape(letter), x=across, y=edge - 4, transform=upright, style=begin)
        parts += tag("text", escape(letter), x=edge - 4, y=place + 3, style="text-anchor:end")
    return tag("svg", parts, class_="map", data_map=name, viewBox=f"0 0 {size + edge} {size + edge}", role="img")


def picture(title: str, description: str, width: float, height: float, content: Iterable[str]) -> str:
    """A self-contained SVG file that follows the reader's light or dark theme."""
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title about">'
        f'<title id="title">{escape(title)}</title><desc id="about">{escape(description)}</desc>'
        f"<style>{stylesheet('theme', 'picture')}</style>"
        f'<rect class="page" width="100%" height="100%"/>{"".join(content)}</svg>'
    )


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
