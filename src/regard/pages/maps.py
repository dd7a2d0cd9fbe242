"""Attention maps as SVG: gray PNG images used as masks over a CSS color."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from html import escape

from regard.pages.svg import rectangle, tag, text

CELL, EDGE = 9, 14  # of a labeled map: pixels of a cell and of the letters around it


def png(rows: Sequence[bytes]) -> bytes:
    """A gray image, one byte per pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def define_map(name: str, weights: Sequence[bytes]) -> str:
    """Weights as an SVG mask that maps of any size refer to by ``name``: white lets the theme's color through."""
    data = base64.b64encode(png(weights)).decode()
    image = f'<image href="data:image/png;base64,{data}" width="1" height="1" preserveAspectRatio="none"/>'
    box = 'maskUnits="objectBoundingBox" maskContentUnits="objectBoundingBox" x="0" y="0" width="1" height="1"'
    return f'<mask id="{name}" {box}>{image}</mask>'


def small_map(name: str, title: str) -> str:
    """A map without labels."""
    return _map(name, title, 100)


def labeled_map(name: str, title: str, letters: Sequence[str]) -> str:
    """A map with the text on both axes: a row is a query, a column a key."""
    labels = []
    for i, letter in enumerate(letters):
        place = EDGE + i * CELL + CELL / 2
        labels.append(text(letter, place, EDGE - 4) + text(letter, EDGE - 7, place + 3))
    return _map(name, title, len(letters) * CELL, EDGE, "".join(labels))


def _map(name: str, title: str, size: int, edge: int = 0, labels: str = "") -> str:
    parts = tag("title", escape(title))
    for class_, mask in (("ground", None), ("ink", f"url(#{name})")):
        parts += rectangle(class_, size, size, x=edge, y=edge, mask=mask)
    return tag("svg", parts + labels, class_="map", viewBox=f"0 0 {size + edge} {size + edge}", role="img")
