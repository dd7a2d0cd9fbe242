"""The page as one file with a trace inside it: it asks nobody anything, and opens wherever a browser is.

The script and the sheet are allowed by their hashes, everything else is forbidden. The data are bounded: small maps of
all heads always, then the measures, then each head's map from coarse to fine, rows, and cells worked out, as long as
they fit; a long text is seen whole but coarsely.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.look.views.session import Trace
from regard.runs.disk import plain
from regard.serve.limits import FILE
from regard.serve.pages import page

SIDE = 256  # cells of a tile
DIGITS = 5  # of a worked-out number


def document(trace: Trace, title: str, text: str, most: int = FILE) -> str:
    """One HTML document, with at most about `most` bytes of data."""
    built = page()
    script = _harmless(built["page.js"].decode())
    sheet = built["page.css"].decode().replace("</", "<\\/")
    data = json.dumps(plain(embedded(trace, title, text, most), lambda _: None), allow_nan=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policy = (
        f"default-src 'none'; script-src '{_sha(script)}'; style-src '{_sha(sheet)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)} · regard</title><style>{sheet}</style></head>"
        '<body><div id="page"></div><noscript>This page draws with JavaScript; please allow it.</noscript>'
        f'<script type="application/json" id="regard-data">{data}</script><script>{script}</script></body></html>\n'
    )


def embedded(trace: Trace, title: str, text: str, most: int = FILE) -> dict[str, Any]:
    """What the page reads instead of asking a server."""
    about = trace.about()
    maps = [one for one in about["attentions"] if one["exact"]]
    heads = max((one["heads"] for one in about["attentions"]), default=1)
    size = min(64, int((most / 4 / max(1, len(about["attentions"]) * heads)) ** 0.5))
    if size < 8:
        raise UserError(f"{len(about['attentions'])} attentions do not fit into {most:,} bytes; allow more")
    overview, _ = trace.overview(size)
    told = {"title": title, "text": text, "trace": {"trace": "", **about}, "overview": packed(overview)}
    told |= {"measures": trace.measures(), "tiles": {}, "rows": {}, "cells": {}}
    left = most - len(json.dumps(plain(told, lambda _: None)))
    for name, count, found in _more(trace, maps, left):
        if count > left:
            break
        for key, value in found:
            told[name][key] = value
        left -= count
    return told


def packed(found: np.ndarray) -> dict[str, Any]:
    """Bytes with their shape."""
    return {"shape": list(found.shape), "data": base64.b64encode(found.tobytes()).decode()}


def _more(trace: Trace, maps: list[dict[str, Any]], room: int) -> Iterator[tuple[str, int, Iterator[tuple[str, Any]]]]:
    """What may follow, best first: its kind, about how many bytes it takes, and how to make it."""
    spent, depth = 0, 0  # of each map its one tile of everything, then so many finer levels as there is room for all
    while depth <= max((_deepest(one) for one in maps), default=-1):
        cells = sum(_cells(one, _deepest(one) - depth) * one["heads"] for one in maps if depth <= _deepest(one))
        if spent + cells * 4 // 3 > room:
            break
        spent, depth = spent + cells * 4 // 3, depth + 1
    yield "tiles", spent, _tiles(trace, maps, depth)
    rows = sum(one["heads"] * one["queries"] for one in maps)
    yield "rows", rows * (64 * 18 + 80), _rows(trace, maps)
    pairs = sum(one["heads"] * sum(_keys(one, query) for query in range(one["queries"])) for one in maps)
    if pairs:
        width = len(json.dumps(_rounded(trace.cell(maps[0]["index"], 0, maps[0]["queries"] - 1, 0))))
        yield "cells", pairs * (width + 24), _worked(trace, maps)


def _deepest(one: dict[str, Any]) -> int:
    """The level at which the whole map is one tile."""
    return max(0, (max(one["queries"], one["keys"], 1) - 1) // SIDE).bit_length()


def _places(one: dict[str, Any], level: int) -> list[tuple[int, int]]:
    """The tiles of a level that hold anything: row and column."""
    span = SIDE << level
    everywhere = [(r, c) for r in range(-(-one["queries"] // span)) for c in range(-(-one["keys"] // span))]
    return [(row, column) for row, column in everywhere if column <= row or not _hides_ahead(one)]


def _hides_ahead(one: dict[str, Any]) -> bool:
    return one["causal"] and one["sides"] == "own"


def _keys(one: dict[str, Any], query: int) -> int:
    """How many keys of a query are worth a cell."""
    return min(query + 1, one["keys"]) if _hides_ahead(one) else one["keys"]


def _cells(one: dict[str, Any], level: int) -> int:
    """Bytes of one head's tiles at a level."""
    side = [min(SIDE, -(-one[name] // (1 << level))) for name in ("queries", "keys")]
    return len(_places(one, level)) * side[0] * side[1]


def _tiles(trace: Trace, maps: list[dict[str, Any]], depth: int) -> Iterator[tuple[str, Any]]:
    """`depth` levels of each map: the finest is computed, and each coarser one is the greatest of four of its cells."""
    for one in maps:
        finest = max(0, _deepest(one) - depth + 1)
        for head in range(one["heads"] if depth else 0):
            shape = [-(-one[name] // (1 << finest)) for name in ("queries", "keys")]
            whole = np.zeros(shape, np.uint8)
            for row, column in _places(one, finest):
                tile = trace.tile(one["index"], head, finest, row, column)
                whole[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE] = tile
            for level in range(finest, _deepest(one) + 1):
                for row, column in _places(one, level):
                    part = whole[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]
                    yield f"{one['index']}/{head}/{level}/{row}/{column}", packed(part)
                whole = np.pad(whole, [(0, size % 2) for size in whole.shape])
                whole = whole.reshape(whole.shape[0] // 2, 2, whole.shape[1] // 2, 2).max((1, 3))


def _rows(trace: Trace, maps: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    for one in maps:
        for head in range(one["heads"]):
            for query in range(one["queries"]):
                yield f"{one['index']}/{head}/{query}", _rounded(trace.row(one["index"], head, query))


def _worked(trace: Trace, maps: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    for one in maps:
        for head in range(one["heads"]):
            for query in range(one["queries"]):
                for key in range(_keys(one, query)):
                    cell = trace.cell(one["index"], head, query, key)
                    yield f"{one['index']}/{head}/{query}/{key}", _rounded(cell)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _harmless(script: str) -> str:
    """The same program in letters that do not end or confuse the element that it stands in."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _sha(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
