"""The page as one HTML file with an embedded trace: it sends no requests and opens in any browser.

The Content-Security-Policy allows the script and the style sheet by hash and forbids everything else. The size of the
data is limited. Overview maps of all heads and the head statistics always fit; the attention tiles from coarse to fine,
the rows and the cells follow as far as there is space. A long text is shown completely at a lower resolution.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.look.statistics.maps import SIDE
from regard.look.views.trace_view import Trace
from regard.runs.disk import JsonObject, plain
from regard.serve.limits import FILE

#: The files of the built page with their media types.
MEDIA_TYPES = {"index.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
DIGITS = 5  # significant digits of embedded numbers

Attention = JsonObject  # an entry of Trace.about()["attentions"]
Entries = Iterator[tuple[str, Any]]


def load_assets() -> dict[str, bytes]:
    """Return the files of the page by name; they are read once, since requests never open files."""
    folder = files("regard.serve") / "page"
    try:
        return {name: (folder / name).read_bytes() for name in MEDIA_TYPES}
    except OSError as error:
        raise UserError("the page is not built; run `make web`, or install regard from a wheel") from error


def html_document(trace: Trace, title: str, text: str, limit: int = FILE) -> str:
    """Return the HTML document, with at most about ``limit`` bytes of data."""
    assets = load_assets()
    # Escape what would end or confuse the surrounding elements.
    script = assets["page.js"].decode().replace("</script", "<\\/script").replace("<!--", "<\\!--")
    style = assets["page.css"].decode().replace("</", "<\\/")
    data = _to_json(embedded_data(trace, title, text, limit))
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policy = (
        f"default-src 'none'; script-src '{_sha256(script)}'; style-src '{_sha256(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)} · regard</title><style>{style}</style></head>"
        '<body><div id="page"></div><noscript>This page needs JavaScript.</noscript>'
        f'<script type="application/json" id="regard-data">{data}</script><script>{script}</script></body></html>\n'
    )


def embedded_data(trace: Trace, title: str, text: str, limit: int = FILE) -> JsonObject:
    """Return the data that the page reads instead of sending requests."""
    about = trace.about()
    attentions = about["attentions"]
    heads = max((attention["heads"] for attention in attentions), default=1)
    size = min(64, int((limit / 4 / max(1, len(attentions) * heads)) ** 0.5))
    if size < 8:
        raise UserError(f"{len(attentions)} attentions do not fit into {limit:,} bytes; raise the limit")
    overview, _ = trace.overview(size)
    data = {"title": title, "text": text, "trace": {"id": "", **about}, "overview": _encode(overview)}
    data |= {"measures": trace.measures, "tiles": {}, "rows": {}, "cells": {}}
    remaining = limit - len(_to_json(data))
    for name, part_size, entries in _optional_parts(trace, [a for a in attentions if a["exact"]], remaining):
        if part_size > remaining:
            break
        data[name] = dict(entries)
        remaining -= part_size
    return data


def _optional_parts(trace: Trace, maps: list[Attention], limit: int) -> Iterator[tuple[str, int, Entries]]:
    """Yield the optional parts by priority: name, approximate size in bytes, and entries."""
    size, levels = 0, 0  # the coarsest level of every map, then as many finer levels as fit for all of them
    while levels <= max((_coarsest_level(a) for a in maps), default=-1):
        finer = [a for a in maps if levels <= _coarsest_level(a)]
        level_size = sum(_level_cells(a, _coarsest_level(a) - levels) * a["heads"] for a in finer) * 4 // 3
        if size + level_size > limit:
            break
        size, levels = size + level_size, levels + 1
    yield "tiles", size, _tiles(trace, maps, levels)
    yield "rows", sum(a["heads"] * a["queries"] for a in maps) * (64 * 18 + 80), _rows(trace, maps)
    maps = [a for a in maps if _has_cells(trace, a)]
    cells = sum(a["heads"] * sum(_visible_keys(a, query) for query in range(a["queries"])) for a in maps)
    if cells:
        width = len(json.dumps(_rounded(trace.cell(maps[0]["index"], 0, maps[0]["queries"] - 1, 0))))
        yield "cells", cells * (width + 24), _cells(trace, maps)


def _coarsest_level(attention: Attention) -> int:
    """Return the level at which the whole map is one tile."""
    return max(0, (max(attention["queries"], attention["keys"], 1) - 1) // SIDE).bit_length()


def _tile_indices(attention: Attention, level: int) -> list[tuple[int, int]]:
    """Return (row, column) of the tiles of a level that are not fully masked."""
    span = SIDE << level
    rows, columns = (range(-(-attention[name] // span)) for name in ("queries", "keys"))
    return [(r, c) for r in rows for c in columns if c <= r or not _hides_future(attention)]


def _hides_future(attention: Attention) -> bool:
    return attention["causal"] and attention["kind"] == "self"


def _visible_keys(attention: Attention, query: int) -> int:
    return min(query + 1, attention["keys"]) if _hides_future(attention) else attention["keys"]


def _level_cells(attention: Attention, level: int) -> int:
    """Return the number of cells of one head's tiles at a level."""
    height, width = (min(SIDE, -(-attention[name] // (1 << level))) for name in ("queries", "keys"))
    return len(_tile_indices(attention, level)) * height * width


def _tiles(trace: Trace, maps: list[Attention], levels: int) -> Entries:
    """Yield ``levels`` levels of each map: the finest is computed, each coarser one is the maximum of 2 x 2 cells."""
    for attention, index, head in _heads(maps) if levels else ():
        coarsest = _coarsest_level(attention)
        finest = max(0, coarsest - levels + 1)
        whole = np.zeros([-(-attention[name] // (1 << finest)) for name in ("queries", "keys")], np.uint8)
        for row, column in _tile_indices(attention, finest):
            whole[_tile_slice(row, column)] = trace.tile(index, head, finest, row, column)
        for level in range(finest, coarsest + 1):
            for row, column in _tile_indices(attention, level):
                yield f"{index}/{head}/{level}/{row}/{column}", _encode(whole[_tile_slice(row, column)])
            whole = np.pad(whole, [(0, size % 2) for size in whole.shape])
            whole = whole.reshape(whole.shape[0] // 2, 2, whole.shape[1] // 2, 2).max((1, 3))


def _tile_slice(row: int, column: int) -> tuple[slice, slice]:
    return slice(row * SIDE, (row + 1) * SIDE), slice(column * SIDE, (column + 1) * SIDE)


def _rows(trace: Trace, maps: list[Attention]) -> Entries:
    for attention, index, head in _heads(maps):
        for query in range(attention["queries"]):
            yield f"{index}/{head}/{query}", _rounded(trace.row(index, head, query))


def _has_cells(trace: Trace, attention: Attention) -> bool:
    """Whether a weight of the mechanism can be explained step by step."""
    try:
        trace.cell(attention["index"], 0, attention["queries"] - 1, 0)
    except UserError:
        return False
    return True


def _cells(trace: Trace, maps: list[Attention]) -> Entries:
    for attention, index, head in _heads(maps):
        for query in range(attention["queries"]):
            for key in range(_visible_keys(attention, query)):
                yield f"{index}/{head}/{query}/{key}", _rounded(trace.cell(index, head, query, key))


def _heads(maps: list[Attention]) -> Iterator[tuple[Attention, int, int]]:
    return ((attention, attention["index"], head) for attention in maps for head in range(attention["heads"]))


def _encode(array: np.ndarray) -> JsonObject:
    """Return the bytes of an array in base64 with its shape."""
    return {"shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}


def _to_json(value: JsonObject) -> str:
    return json.dumps(plain(value, lambda _: None), allow_nan=False, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _sha256(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
