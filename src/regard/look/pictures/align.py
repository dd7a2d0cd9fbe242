"""Alignment: the source words that each word of a translation attends to.

The weights are those of a forward pass over the finished translation (teacher forcing), recomputed by `trace.py` for
every attention over the source: one map for a recurrent decoder, layers × heads for a Transformer. Tokens are merged
into words: a word's column is the sum over its tokens, its row their mean, so that a row still sums to one. An
alignment is drawn in the terminal, as an SVG file, as an HTML page around it, or as a PNG file (by matplotlib).
"""

import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.base import Specials
from regard.data.tokenizers import Tokenizer
from regard.errors import UserError
from regard.look.capture.observe import attentions, dense_weights
from regard.models.base import Seq2SeqModel
from regard.models.device import parameter_device
from regard.pages.html import document
from regard.pages.numbers import plural
from regard.pages.svg import cell_paths, moved, picture, rectangle, tag, text

END = "<end>"
SHADES = " ░▒▓█"
LEVELS = (0.05, 0.15, 0.35, 0.65)  # lower bounds of the shades
LONGEST = 14  # terminal columns per word
KINDS = (".svg", ".png", ".html")  # of a picture
INKS = 10  # shades of a small map
WIDE = "mw@%<>+="  # letters; capitals and other alphabets are taken to be as wide
CELL, GAP, NAME = 22, 18, 12  # pixels: a cell of the large map, between maps, the name of a small one


class HeadMap(NamedTuple):
    """The weights of one head."""

    name: str
    weights: Tensor  # [words of the translation, words of the source]


class Alignment(NamedTuple):
    """The attention maps of one sentence and its translation."""

    source: list[str]
    target: list[str]
    maps: list[HeadMap]

    @property
    def mean(self) -> Tensor:
        """Over all heads of all layers."""
        return torch.stack([one.weights for one in self.maps]).mean(0)

    def words(self) -> str:
        """For each word the source word with the largest weight, for screen readers."""
        best = self.mean.max(1)
        pairs = zip(self.target, best.indices.tolist(), best.values.tolist(), strict=True)
        return "; ".join(f"{word} from {self.source[at]} ({weight:.2f})" for word, at, weight in pairs)


def align(
    model: Seq2SeqModel, tokenizer: Tokenizer, specials: Specials, source: Sequence[int], target: Sequence[int]
) -> Alignment:
    """The alignment of one translation: ``source`` with its end token, ``target`` with or without."""
    target = [token for token in target if token != specials.end]
    device = parameter_device(model)
    inputs = torch.tensor([[specials.begin, *target]], device=device)
    sources = torch.tensor([list(source)], device=device)
    lengths = torch.tensor([len(source)], device=device)
    source_words = split_words(tokenizer, specials, source)
    target_words = split_words(tokenizer, specials, [*target, specials.end])
    maps = []
    for layer, heads in enumerate(over_source(model, inputs, sources, lengths), 1):
        for head, weights in enumerate(heads, 1):
            name = "attention" if len(heads) == 1 else f"d{layer}×.{head}"
            maps.append(HeadMap(name, merge_tokens(weights, target_words, source_words)))
    if not maps:
        raise UserError("this model has no attention over the source, so there is no alignment to draw")
    return Alignment([word for word, _ in source_words], [word for word, _ in target_words], maps)


def over_source(model: Seq2SeqModel, inputs: Tensor, source: Tensor, lengths: Tensor) -> list[Tensor]:
    """The weights [H, T, S] of each attention over the source."""
    observed = attentions(model, lambda: model.features(inputs, source, lengths))
    over = [seen for seen in observed if not seen.plan.same_tokens and seen.k.shape[2] == source.shape[1]]
    return [dense_weights(seen)[0].cpu() for seen in over]


def split_words(tokenizer: Tokenizer, specials: Specials, tokens: Sequence[int]) -> list[tuple[str, int]]:
    """The words of a token sequence, and the number of tokens of each; a word includes the white space before it."""
    words: list[tuple[bytes, int]] = []
    for token in tokens:
        piece = END.encode() if token == specials.end else tokenizer.decode_bytes([token])
        begins = not words or token == specials.end or (piece[:1].isspace() and words[-1][0].strip())
        text, count = (b"", 0) if begins else words.pop()
        words.append((text + piece, count + 1))
    return [(text.decode("utf-8", "replace").strip() or "␣", count) for text, count in words]


def merge_tokens(weights: Tensor, target: list[tuple[str, int]], source: list[tuple[str, int]]) -> Tensor:
    """Weights between tokens [T, S] to weights between words."""
    columns = torch.stack([part.sum(1) for part in weights.split([count for _, count in source], 1)], 1)
    return torch.stack([part.mean(0) for part in columns.split([count for _, count in target])])


def draw(alignment: Alignment, width: int = 80, color: bool = False) -> str:
    """The mean map for a terminal of ``width`` columns: a row per target word; wide maps are split into parts."""
    from rich.cells import cell_len, set_cell_size

    mean = alignment.mean
    side = min(max(cell_len(word) for word in alignment.target), max(6, width // 3))
    sizes = [min(max(cell_len(word), 2), LONGEST, max(2, width - side - 1)) for word in alignment.source]
    parts: list[list[int]] = [[]]
    for at, size in enumerate(sizes):
        if parts[-1] and side + sum(sizes[i] + 1 for i in parts[-1]) + 1 + size > width:
            parts.append([])
        parts[-1].append(at)
    on, off = ("\033[34m", "\033[0m") if color else ("", "")
    lines = []
    for part in parts:
        lines.append(" " * side + "".join(" " + cut(alignment.source[at], sizes[at]) for at in part))
        for word, shares in zip(alignment.target, mean.tolist(), strict=True):
            cells = "".join(" " + shade(shares[at]) * sizes[at] for at in part)
            lines.append(set_cell_size(cut(word, side), side) + on + cells + off)
        lines.append("")
    legend = "  ".join(f"{SHADES[i + 1]} {level:.0%}+" for i, level in enumerate(LEVELS))
    heads = f", mean of {len(alignment.maps)} heads" if len(alignment.maps) > 1 else ""
    return "\n".join([*(line.rstrip() for line in lines), f"{legend}{heads}"])


def shade(weight: float) -> str:
    """The character for a weight."""
    return SHADES[sum(weight >= level for level in LEVELS)]


def cut(word: str, size: int) -> str:
    """A word in exactly ``size`` columns, with an ellipsis if it is cut."""
    from rich.cells import cell_len, set_cell_size

    return set_cell_size(word, size) if cell_len(word) <= size else set_cell_size(word, size - 1) + "…"


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
    style = "body{margin:16px;background:var(--card)}svg{max-width:100%;height:auto}"
    return document("Alignments", style, svg(alignments))


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


def pixels(word: str) -> float:
    """No less than the width of a word in a usual font of 13 pixels, so that no word is cut off."""
    wide = sum(letter in WIDE or letter.isupper() or letter > "\u02af" for letter in word)
    return 14.0 * wide + 8.4 * (len(word) - wide)


def figure(alignment: Alignment) -> tuple[str, float, float]:
    """One alignment, its width and height: the mean with its words, then a small map of each head."""
    left = 8 + max(pixels(word) for word in alignment.target)
    longest = max(pixels(word) for word in alignment.source)
    top = 14 + 0.77 * longest  # at 50 degrees
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
    width = left + wide + 0.65 * longest
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
    levels = (one.weights * INKS).round().int().tolist()
    name = tag("title", escape(one.name)) + text(one.name, 0, -3, "soft")
    return name + rectangle("ground", wide, high) + cell_paths(levels, cell, cell, INKS)


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
    layers = [one.name.split(".")[0] for one in alignment.maps]
    across = layers.count(layers[0])
    return -(-len(layers) // across), across
