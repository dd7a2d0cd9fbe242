"""Alignments as pictures: an SVG file, an HTML page around it, or a PNG file (drawn by matplotlib)."""

import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path

from regard.errors import UserError
from regard.look.pictures.align import Alignment, HeadMap
from regard.pages.numbers import plural
from regard.pages.svg import cell_paths, moved, picture, rectangle, tag, text

KINDS = (".svg", ".png", ".html")
SHADES = 10  # of a small map
CELL, GAP, NAME = 22, 18, 12  # pixels: a cell of the large map, between maps, the name of a small one


def save(alignments: Sequence[Alignment], path: Path) -> None:
    """Write a picture in the format of the file's extension."""
    kind = check(path)
    try:
        if kind == ".png":
            png(alignments, path)
        else:
            content = svg(alignments) if kind == ".svg" else page(alignments)
            path.write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"the picture {path} cannot be written: {error.strerror}") from error


def check(path: Path) -> str:
    """The format of a picture; a UserError if it is unknown, cannot be drawn here, or the folder does not exist."""
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise UserError(f"{path} has no known picture format; choose a name that ends in {', '.join(KINDS)}")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} for the picture {path.name}; create it first")
    if kind == ".png":
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            fix = "install it with `pip install regard[pictures]`, or choose a name that ends in .svg"
            raise UserError(f"a PNG picture is drawn by matplotlib, which is not installed; {fix}") from error
    return kind


def page(alignments: Sequence[Alignment]) -> str:
    """An HTML page with the picture."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<title>Alignments</title><style>body{margin:16px;background:var(--card)}svg{max-width:100%;height:auto}"
        f"</style><body>{svg(alignments)}</body></html>"
    )


def svg(alignments: Sequence[Alignment]) -> str:
    """All alignments below one another."""
    drawn, width, y = [], 0.0, float(GAP)
    for alignment in alignments:
        content, wide, high = figure(alignment)
        drawn.append(moved(GAP, y, content))
        width, y = max(width, wide), y + high + 2 * GAP
    title = f"Alignment of {plural(len(alignments), 'translation')}"
    about = " | ".join(f"{' '.join(one.target[:-1])}: {one.words()}" for one in alignments)
    return picture(title, about, width + 2 * GAP, y, drawn)


def figure(alignment: Alignment) -> tuple[str, float, float]:
    """One alignment, its width and height: the mean with its words, then a small map of each head."""
    left = 8 + 7.2 * max(len(word) for word in alignment.target)
    top = 14 + 5.6 * max(len(word) for word in alignment.source)
    wide, high = CELL * len(alignment.source), CELL * len(alignment.target)
    parts = [rectangle("ground", wide, high, x=left, y=top)]
    for i, (word, weights) in enumerate(zip(alignment.target, alignment.mean.tolist(), strict=True)):
        y = top + i * CELL
        parts.append(text(word, left - 6, y + 16, anchor="end"))
        for j, weight in enumerate(weights):
            label = tag("title", escape(f"{word} from {alignment.source[j]}: {weight:.2f}"))
            place = {"x": left + j * CELL, "y": y, "width": CELL, "height": CELL}
            parts.append(tag("rect", label, class_="ink", **place, fill_opacity=f"{weight:.3f}"))
    for j, word in enumerate(alignment.source):
        at = f"translate({left + j * CELL + 14:.0f} {top - 6:.0f}) rotate(-50)"
        parts.append(tag("text", escape(word), transform=at))
    width = left + wide + 4 * max(len(word) for word in alignment.source)
    if len(alignment.maps) == 1:
        return "".join(parts), width, top + high
    y = top + high + GAP + 8
    cell = max(4.0, 90 / len(alignment.source))  # wide enough for the name
    each, tall = cell * len(alignment.source), cell * len(alignment.target)
    lines, across = _grid(alignment)
    for number, one in enumerate(alignment.maps):
        row, column = divmod(number, across)
        parts.append(moved(column * (each + GAP), y + row * (tall + GAP + NAME), _small(one, cell)))
    return "".join(parts), max(width, across * (each + GAP)), y + lines * (tall + GAP + NAME)


def _small(one: HeadMap, cell: float) -> str:
    """A map without words."""
    high, wide = (cell * size for size in one.weights.shape)
    levels = (one.weights * SHADES).round().int().tolist()
    name = tag("title", escape(one.name)) + text(one.name, 0, -3, "soft")
    return name + rectangle("ground", wide, high) + cell_paths(levels, cell, cell, SHADES)


def png(alignments: Sequence[Alignment], path: Path) -> None:
    """The same as pixels, on white."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [
        max(1 + 0.28 * len(one.target) + 0.06 * len(max(one.source, key=len)), 1.2 * _grid(one)[0])
        for one in alignments
    ]
    width = max(2 + 0.3 * len(one.source) + 1.25 * _grid(one)[1] for one in alignments)
    drawing = Figure(figsize=(max(width, 5), sum(heights)), layout="constrained")
    FigureCanvasAgg(drawing)
    parts = drawing.subfigures(len(alignments), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, alignment in zip(parts, alignments, strict=True):
        lines, across = _grid(alignment)
        first = part
        if lines:
            first, second = part.subfigures(1, 2, width_ratios=[2.0 + 0.3 * len(alignment.source), 1.25 * across])
            axes = second.subplots(lines, across, squeeze=False)
            for axis, one in zip(axes.flat, alignment.maps, strict=False):
                axis.imshow(one.weights.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
                axis.set_title(one.name, fontsize=7)
            for axis in axes.flat:
                axis.set_axis_off()
        large = first.subplots()
        large.imshow(alignment.mean.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        large.set_yticks(range(len(alignment.target)), alignment.target, fontsize=9)
        large.xaxis.tick_top()
        large.set_xticks(range(len(alignment.source)), alignment.source, rotation=50, ha="left", fontsize=9)
        large.tick_params(length=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a character that the font lacks is drawn as a box
        drawing.savefig(path, dpi=150)


def _grid(alignment: Alignment) -> tuple[int, int]:
    """Rows and columns of small maps, a layer per row; none for a single head."""
    if len(alignment.maps) == 1:
        return 0, 0
    layers = [one.name.split(",")[0] for one in alignment.maps]
    across = layers.count(layers[0])
    return -(-len(layers) // across), across
