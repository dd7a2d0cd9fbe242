"""Alignments as pictures: SVG that follows the reader's light or dark theme, a page around it, or PNG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.look.pictures.align import Alignment, Map

KINDS = (".svg", ".png", ".html")
STEPS = 10  # shades of a small map
CELL, GAP, NAME = 22, 18, 12  # of the large map; between maps; for the name of a small one
STYLE = """
:root{--bg:#fff;--ink:#1d2430;--soft:#5a6474;--map:#f4f2ec;--c0:#1d66b3;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--bg:#191d25;--ink:#e8eaee;--soft:#a2abba;--map:#1f2530;--c0:#6db3ff}}
.page{fill:var(--bg)}.ground{fill:var(--map)}.ink{fill:var(--c0)}
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}
.soft{font-size:11px;fill:var(--soft)}
"""


def save(alignments: Sequence[Alignment], path: Path) -> None:
    """Write a picture of the kind that the file's name asks for."""
    kind = check(path)
    try:
        if kind == ".png":
            png(alignments, path)
        else:
            text = svg(alignments) if kind == ".svg" else page(alignments)
            path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"the picture {path} cannot be written: {error.strerror}") from error


def check(path: Path) -> str:
    """The kind of a picture; a UserError for a name that asks for none of ours, or a folder that is not there."""
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise UserError(f"{path} is no picture that can be drawn; let its name end in {', '.join(KINDS)}")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} for the picture {path.name}; make it first")
    return kind


def page(alignments: Sequence[Alignment]) -> str:
    """A page with the picture."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<title>Alignments</title><style>body{margin:16px;background:var(--bg)}svg{max-width:100%;height:auto}</style>"
        f"<body>{svg(alignments)}</body></html>"
    )


def svg(alignments: Sequence[Alignment]) -> str:
    """All alignments, one below the other."""
    drawn, width, y = [], 0.0, float(GAP)
    for alignment in alignments:
        text, wide, high = figure(alignment)
        drawn.append(f'<g transform="translate({GAP} {y:.0f})">{text}</g>')
        width, y = max(width, wide), y + high + 2 * GAP
    width += 2 * GAP
    title = f"Alignment of {len(alignments)} translation{'s' * (len(alignments) != 1)}"
    about = " | ".join(f"{' '.join(one.target[:-1])}: {one.words()}" for one in alignments)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {y:.0f}" width="{width:.0f}" '
        f'height="{y:.0f}" role="img" aria-labelledby="title about"><title id="title">{title}</title>'
        f'<desc id="about">{escape(about)}</desc><style>{STYLE}</style>'
        f'<rect class="page" width="100%" height="100%"/>{"".join(drawn)}</svg>'
    )


def figure(alignment: Alignment) -> tuple[str, float, float]:
    """One alignment: the mean with its words, then each head small; its width and height."""
    left = 8 + 7.2 * max(len(word) for word in alignment.target)
    top = 14 + 5.6 * max(len(word) for word in alignment.source)
    wide, high = CELL * len(alignment.source), CELL * len(alignment.target)
    parts = [f'<rect class="ground" x="{left:.0f}" y="{top:.0f}" width="{wide}" height="{high}"/>']
    for i, (word, shares) in enumerate(zip(alignment.target, alignment.mean.tolist(), strict=True)):
        y = top + i * CELL
        parts.append(f'<text x="{left - 6:.0f}" y="{y + 16:.0f}" text-anchor="end">{escape(word)}</text>')
        for j, share in enumerate(shares):
            said = f"{word} from {alignment.source[j]}: {share:.2f}"
            parts.append(
                f'<rect class="ink" x="{left + j * CELL:.0f}" y="{y:.0f}" width="{CELL}" height="{CELL}" '
                f'fill-opacity="{share:.3f}"><title>{escape(said)}</title></rect>'
            )
    for j, word in enumerate(alignment.source):
        at = f"translate({left + j * CELL + 14:.0f} {top - 6:.0f}) rotate(-50)"
        parts.append(f'<text transform="{at}">{escape(word)}</text>')
    width = left + wide + 4 * max(len(word) for word in alignment.source)
    if len(alignment.maps) == 1:
        return "".join(parts), width, top + high
    y = top + high + GAP + 8
    cell = max(4.0, 90 / len(alignment.source))  # wide enough for the name
    each, tall, across = cell * len(alignment.source), cell * len(alignment.target), _across(alignment)
    for number, one in enumerate(alignment.maps):
        x, below = (number % across) * (each + GAP), y + number // across * (tall + GAP + NAME)
        parts.append(f'<g transform="translate({x:.0f} {below:.0f})">{_small(one, cell)}</g>')
    lines = -(-len(alignment.maps) // across)
    return "".join(parts), max(width, across * (each + GAP)), y + lines * (tall + GAP + NAME)


def _across(alignment: Alignment) -> int:
    """How many small maps stand side by side: one layer's heads."""
    first = alignment.maps[0].name.split(",")[0]
    return sum(one.name.split(",")[0] == first for one in alignment.maps)


def _small(one: Map, cell: float) -> str:
    """A map without letters: one path for each shade."""
    high, wide = (cell * size for size in one.weights.shape)
    parts = [f'<title>{escape(one.name)}</title><text class="soft" y="-3">{escape(one.name)}</text>']
    parts.append(f'<rect class="ground" width="{wide:.1f}" height="{high:.1f}"/>')
    levels = (one.weights * STEPS).round().int().tolist()
    for level in range(1, STEPS + 1):
        cells = [
            f"M{j * cell:.1f} {i * cell:.1f}h{cell:.1f}v{cell:.1f}h-{cell:.1f}z"
            for i, row in enumerate(levels)
            for j, found in enumerate(row)
            if found == level
        ]
        if cells:
            parts.append(f'<path class="ink" fill-opacity="{level / STEPS}" d="{"".join(cells)}"/>')
    return "".join(parts)


def png(alignments: Sequence[Alignment], path: Path) -> None:
    """The same as pixels, on white."""
    import warnings

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heights = [_inches(one) for one in alignments]
    widest = max(2.0 + 0.3 * len(one.source) + 1.25 * _grid(one)[1] for one in alignments)
    figure = Figure(figsize=(max(widest, 5), sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    parts = figure.subfigures(len(alignments), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, alignment in zip(parts, alignments, strict=True):
        _draw(part, alignment)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the font has no sign for some character: a box is drawn
        figure.savefig(path, dpi=150)


def _inches(alignment: Alignment) -> float:
    words = 0.1 * max(len(word) for word in alignment.source)
    return max(0.6 + words + 0.28 * len(alignment.target), 1.2 * _grid(alignment)[0] + 0.4)


def _grid(alignment: Alignment) -> tuple[int, int]:
    """Lines and columns of small maps; none for a single head."""
    across = _across(alignment)
    return (0, 0) if len(alignment.maps) == 1 else (-(-len(alignment.maps) // across), across)


def _draw(part: Any, alignment: Alignment) -> None:
    lines, across = _grid(alignment)
    if not lines:
        large = part.subplots()
    else:
        words = 2.0 + 0.3 * len(alignment.source)
        first, second = part.subfigures(1, 2, width_ratios=[words, 1.25 * across])
        large = first.subplots()
        axes = second.subplots(lines, across, squeeze=False)
        for axis, one in zip(axes.flat, alignment.maps, strict=False):
            axis.imshow(one.weights.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axis.set_title(one.name, fontsize=7)
        for axis in axes.flat:
            axis.set_xticks([])
            axis.set_yticks([])
    large.imshow(alignment.mean.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    large.set_yticks(range(len(alignment.target)), alignment.target, fontsize=9)
    large.xaxis.tick_top()
    large.set_xticks(range(len(alignment.source)), alignment.source, rotation=50, ha="left", fontsize=9)
    large.tick_params(length=0)
