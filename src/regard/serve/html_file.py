"""The page as one HTML file with an embedded trace, also in a notebook: it sends no requests.

The Content-Security-Policy allows the script and the style sheet by hash and forbids everything else. The size of the
data is limited. Overview maps of all heads and the head statistics always fit; the attention tiles from coarse to fine,
the cells and the rows follow as far as there is space. A long text is shown completely at a lower resolution.
"""

import base64
import json
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np

from regard.data.tokenizers import Tokenizer
from regard.errors import UserError
from regard.generate.load import LoadedModel
from regard.look.statistics.maps import SIDE, coarsest_level
from regard.look.views.session import Session
from regard.look.views.trace import Trace
from regard.models import Model
from regard.pages.html import document, sha256
from regard.runs import Run
from regard.runs.disk import JsonObject, plain
from regard.serve.limits import FILE

#: The files of the built page with their media types.
MEDIA_TYPES = {"index.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
HEIGHT = 720  # of the frame in a notebook, pixels
DIGITS = 5  # significant digits of embedded numbers
CELLS = 20_000  # that are computed for a file: more take too long

Attention = JsonObject  # an entry of Trace.about()["attentions"]
ModelSource = str | Path | Run | LoadedModel | Session | Model
Entries = Iterator[tuple[str, object]]


def load_assets() -> dict[str, bytes]:
    """Return the files of the page by name; they are read once, since requests never open files."""
    folder = files("regard.serve") / "page"
    try:
        return {name: (folder / name).read_bytes() for name in MEDIA_TYPES}
    except OSError as error:
        raise UserError("the page is not built; run `make web`, or install regard from a wheel") from error


def html_document(trace: Trace, title: str, text: str, limit: int = FILE, picture: str | None = None) -> str:
    """Return the HTML document, with at most about ``limit`` bytes of data; ``picture``: an SVG above the maps."""
    assets = load_assets()
    # Escape what would end or confuse the surrounding elements.
    script = assets["page.js"].decode().replace("</script", "<\\/script").replace("<!--", "<\\!--")
    style = assets["page.css"].decode().replace("</", "<\\/")
    embedded = embedded_data(trace, title, text, limit)
    if picture is not None:  # as an image, it runs no script and keeps its own style
        embedded["picture"] = f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"
    data = _to_json(embedded)
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policy = (
        f"default-src 'none'; script-src '{sha256(script)}'; style-src '{sha256(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
    body = (
        '<div id="page"></div><noscript>This page needs JavaScript.</noscript>'
        f'<script type="application/json" id="regard-data">{data}</script><script>{script}</script>'
    )
    return document(title, style, body, policy, head)


class NotebookPage:
    """A self-contained HTML document; notebooks display it in a sandboxed frame."""

    def __init__(self, html: str, height: int = HEIGHT):
        self.html, self.height = html, height

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{escape(self.html)}" title="attention" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write the document to a file."""
        Path(path).write_text(self.html, encoding="utf-8")
        return Path(path)


def show(
    model: ModelSource,
    text: str,
    target: str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    height: int = HEIGHT,
    limit: int = FILE,
) -> NotebookPage:
    """Show the attention of a model for a text.

    Args:
        model: A run (its folder, its name in `runs`, or a `Run`), a `LoadedModel`, a `Session`, or a language model
            together with its ``tokenizer``.
        text: The input text; for a translation model, the source.
        target: The target text of a translation model.
        tokenizer: The tokenizer, if ``model`` is a module.
        height: Height of the frame in a notebook, in pixels.
        limit: Bytes of embedded data; a long text is shown at a lower resolution.
    """
    session = _make_session(model, tokenizer)
    title = type(session.model).__name__
    document = html_document(session.trace(text, target), title, shown_text(text, target), limit)
    return NotebookPage(document, height)


def shown_text(text: str, target: str | None) -> str:
    """Return the text above the maps: with a translation, both."""
    return text if target is None else f"{text}\n→ {target}"


def _make_session(model: ModelSource, tokenizer: Tokenizer | None) -> Session:
    if isinstance(model, Session):
        return model
    if isinstance(model, (str, Path)):
        named = Path("runs") / model
        model = Run.open(named if not Path(model).exists() and named.is_dir() else Path(model))
    if isinstance(model, Run):
        return Session.load(model)
    if isinstance(model, LoadedModel):
        model, tokenizer = model.model, model.tokenizer
    if tokenizer is None:
        raise UserError("a module has no tokenizer; pass one: regard.show(model, text, tokenizer=...)")
    return Session(model, tokenizer)


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
            continue
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
    stepwise = [a for a in maps if a["not_stepwise"] is None]
    costs = [_cell_cost(trace, a) for a in stepwise]
    cells_size = sum(size for size, _ in costs)
    if sum(cells for _, cells in costs) > CELLS or size + cells_size > limit:
        stepwise = []
    yield "cells", cells_size, _cells(trace, stepwise)
    others = [a for a in maps if a not in stepwise]  # the page computes rows from the cells
    yield "rows", sum(a["heads"] * a["queries"] for a in others) * (64 * 18 + 80), _rows(trace, others)


def _coarsest_level(attention: Attention) -> int:
    return coarsest_level(attention["queries"], attention["keys"])


def _tile_indices(attention: Attention, level: int) -> list[tuple[int, int]]:
    """Return (row, column) of the tiles of a level that are not fully masked."""
    span = SIDE << level
    rows, columns = (range(-(-attention[name] // span)) for name in ("queries", "keys"))
    return [(r, c) for r in rows for c in columns if c <= r or not attention["causal"]]


def _visible_keys(attention: Attention, query: int) -> int:
    return min(query + 1, attention["keys"]) if attention["causal"] else attention["keys"]


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


def _cell_cost(trace: Trace, attention: Attention) -> tuple[int, int]:
    """Return the approximate size in bytes of all cells of an attention, and how many must be computed."""
    index, queries, keys = (attention[name] for name in ("index", "queries", "keys"))
    cell = trace.cell(index, 0, queries - 1, 0)
    numbers = queries * len(cell["q"]) + keys * (len(cell["k"]) + len(cell["v"])) + 8 * queries
    number_of_grids = len(_pair_grids(cell))
    pairs = number_of_grids or not _all_weighted(trace, attention, 0, queries - 1, cell)
    size = (numbers + number_of_grids * queries * keys) * 16 // 3
    return attention["heads"] * size, attention["heads"] * (queries * keys if pairs else queries + keys)


def _all_weighted(trace: Trace, attention: Attention, head: int, query: int, cell: JsonObject) -> bool:
    """Return whether every key that the causal order allows has a weight; ``cell`` is any of the attention."""
    seen = trace.row(attention["index"], head, query)["visible_keys"]
    return seen == _visible_keys(attention, query) and cell["normalizer"] != "TopKSoftmax"


def _pair_grids(cell: JsonObject) -> list[str]:
    """Return the numbers of a cell that do not follow from the vectors of its two tokens and from its row."""
    summed = abs(sum(cell["terms"]) - cell["dot"]) < 1e-3 * max(1.0, abs(cell["dot"]))
    needed = {"bias": cell["bias"] is not None, "weight": cell["max"] is None, "dot": not summed}
    return [name for name, needs in needed.items() if needs]


def _cells(trace: Trace, maps: list[Attention]) -> Entries:
    """Yield for each head what the page computes its cells from: vectors once per token, and numbers once per row."""
    for attention, index, head in _heads(maps):
        queries, keys = attention["queries"], attention["keys"]
        rows = [trace.cell(index, head, query, 0) for query in range(queries)]
        columns = [trace.cell(index, head, queries - 1, key) for key in range(keys)]
        first = rows[0]
        grids = {"q": [cell["q"] for cell in rows], **{name: [cell[name] for cell in columns] for name in ("k", "v")}}
        if first["score"] == "additive":  # the terms are mix * tanh(q + k)
            grids["mix"] = [np.array(first["terms"]) / np.tanh(np.add(first["q"], first["k"]))]
        pairs = {name: np.zeros((queries, keys)) for name in _pair_grids(first)}
        hidden: dict[str, list[int]] = {}
        for query in range(queries):
            visible = _visible_keys(attention, query)
            if not pairs and _all_weighted(trace, attention, head, query, first):
                continue
            for key in range(keys if pairs else visible):
                cell = trace.cell(index, head, query, key)
                for name, grid in pairs.items():
                    grid[query, key] = cell[name]
                if cell["reason"] and key < visible:
                    hidden.setdefault(cell["reason"], []).append(query * keys + key)
        encoded = {name: _encode(np.asarray(grid, "<f4")) for name, grid in (grids | pairs).items()}
        constants = {name: first[name] for name in ("score", "scale", "temperature", "normalizer")}
        yield (
            f"{index}/{head}",
            {**constants, **encoded, "rows": [[c["max"], c["sum"]] for c in rows], "hidden": hidden},
        )


def _heads(maps: list[Attention]) -> Iterator[tuple[Attention, int, int]]:
    return ((attention, attention["index"], head) for attention in maps for head in range(attention["heads"]))


def _encode(array: np.ndarray) -> JsonObject:
    """Return the bytes of an array in base64 with its shape."""
    return {"shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}


def _to_json(value: JsonObject) -> str:
    return json.dumps(plain(value, lambda _: None), allow_nan=False, separators=(",", ":"))


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
