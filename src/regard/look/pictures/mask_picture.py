"""A mask as text for the terminal and as SVG. Rows are queries, columns are keys.

Next to the pairs is the layout of tiles that fast paths use: skipped, computed with the mask, computed without it.
"""

from __future__ import annotations

from itertools import zip_longest

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention import Mask
from regard.attention.masks.expression import write
from regard.look.pictures.mask_view import EMPTY, FULL, PARTIAL, MaskView, view
from regard.pages.svg import cell_paths, moved, picture, rectangle, tag, text

SHADES = ("··", "░░", "▒▒", "▓▓", "██")  # nothing allowed, up to a third, up to two thirds, less than all, all
PLAIN = (". ", "- ", "+ ", "* ", "# ")  # for terminals without these characters
TILES = (0, 2, 4)  # the shade of an empty, a partial and a full tile
SIDE, GAP, EDGE = 512, 56, 34  # of the SVG, in pixels: a map's side, between maps, for numbers
KEY = ("skipped, nothing allowed", "partial: computed with the mask", "full: computed without it")


def draw_mask(mask: Mask, length: int = 32, *, block: int = 8, width: int = 80, ascii: bool = False) -> str:
    """A mask over ``length`` tokens as text for a terminal of ``width`` columns.

    >>> from regard.attention import Causal
    >>> for line in draw_mask(Causal(), 3, block=2, ascii=True).splitlines()[2:6]:
    ...     print(line)
    pairs: 1 cell = 1 token   tiles of 2
    # . .                     + .
    # # .                     # #
    # # #
    """
    shown = view(mask, length, block=block, most=max(1, width // 2))
    shades = PLAIN if ascii else SHADES
    left = [f"pairs: 1 cell = {_tokens(shown.cell)}", *_shaded(_levels(shown.share), shades)]
    tiles = pooled(shown.layout, max(1, width // 2))
    right = [f"tiles of {_tile_size(shown, tiles):,}", *_shaded(tiles.apply_(TILES.__getitem__), shades)]
    wide = max(map(len, left))
    if wide + 3 + max(map(len, right)) <= width:
        body = [f"{one:{wide}}   {two}".rstrip() for one, two in zip_longest(left, right, fillvalue="")]
    else:
        body = [line.rstrip() for line in [*left, "", *right]]
    dark, half, none = (shades[i].strip() for i in (4, 2, 0))
    key = f"{dark} all allowed   {half} some   {none} none; rows are queries, columns keys"
    return "\n".join([write(mask, brief=True), "", *body, "", key, *words(shown)])


def words(shown: MaskView) -> list[str]:
    """The counts, and the backend."""
    total = shown.layout.numel()
    loose = f" ({shown.needed} contain an allowed pair: the block bounds are loose)" * (shown.computed > shown.needed)
    return [
        f"{shown.allowed:,} of {shown.pairs:,} pairs are allowed ({shown.allowed / shown.pairs:.1%})",
        f"{shown.computed:,} of {total:,} tiles of {_tokens(shown.block)} are computed ({shown.computed / total:.1%}): "
        f"{shown.tiles(FULL):,} full, {shown.tiles(PARTIAL):,} partial, {shown.tiles(EMPTY):,} skipped{loose}",
        f"backend here: {shown.explanation.chosen}",
    ]


def mask_svg(mask: Mask, length: int = 32, *, block: int = 8) -> str:
    """A mask over ``length`` tokens as a picture that follows the reader's light or dark theme."""
    shown = view(mask, length, block=block)
    tiles = pooled(shown.layout, 128)
    lines, name = words(shown), write(mask, brief=True)
    tiled = _map(tiles.clone().apply_(TILES.__getitem__), length, f"tiles of {_tokens(_tile_size(shown, tiles))}; keys")
    beside = tag("text", "queries", class_="soft", transform=f"translate(-6 {SIDE}) rotate(-90)")
    parts = [
        text(_cut(name, 120), EDGE, 20, "code"),
        moved(EDGE, 50, beside + _map(_levels(shown.share), length, "keys")),
        moved(EDGE + SIDE + GAP, 50, tiled),
        *(text(line, EDGE, SIDE + 74 + 16 * i, "soft") for i, line in enumerate(lines)),
        moved(EDGE + SIDE + GAP, SIDE + 64, _key()),
    ]
    about = f"{'. '.join(lines)}. Rows are queries, columns are keys."
    return picture(f"{name}, {_tokens(length)}", about, 2 * SIDE + GAP + 2 * EDGE, SIDE + EDGE + 96, parts)


def _map(levels: Tensor, length: int, above: str) -> str:
    """Cells of five shades, with the numbers of the first and the last token."""
    count = levels.shape[0]
    cell = SIDE / count
    parts = [text(f"{above} 0", 0, -6, "soft"), text(str(length - 1), SIDE, -6, "soft", "end")]
    parts += [rectangle("ground", SIDE, SIDE), cell_paths(levels.tolist(), cell, cell, TILES[-1])]
    if 1 < count <= 64:  # with more cells, lines would hide them
        lines = "".join(f"M{i * cell:.2f} 0V{SIDE}M0 {i * cell:.2f}H{SIDE}" for i in range(1, count))
        parts.append(tag("path", class_="rule", d=lines))
    return "".join(parts)


def _key() -> str:
    return "".join(
        rectangle("ground", 12, 12, y=18 * i)
        + rectangle("ink", 12, 12, y=18 * i, fill_opacity=level / TILES[-1])
        + text(label, 20, 18 * i + 10, "soft")
        for i, (level, label) in enumerate(zip(TILES, KEY, strict=True))
    )


def pooled(tiles: Tensor, most: int) -> Tensor:
    """A layout of at most ``most`` tiles per side; a pooled tile that is neither all empty nor all full is partial."""
    group = -(-tiles.shape[0] // most)
    if group == 1:
        return tiles.clone()
    short = -tiles.shape[0] % group
    squares = F.pad(tiles.float()[None, None], (0, short, 0, short), mode="replicate")
    highest, lowest = F.max_pool2d(squares, group), -F.max_pool2d(-squares, group)
    return torch.where(lowest == highest, lowest, PARTIAL)[0, 0].to(tiles.dtype)


def _tile_size(shown: MaskView, tiles: Tensor) -> int:
    """Tokens per side of a pooled tile."""
    return shown.block * -(-shown.layout.shape[0] // tiles.shape[0])


def _levels(share: Tensor) -> Tensor:
    """Shares as one of five shades; the outer two are for cells that are entirely hidden or entirely allowed."""
    inner = (share * 3).floor().clamp(0, 2).int() + 1
    return torch.where(share <= 0, 0, torch.where(share >= 1, 4, inner))


def _shaded(levels: Tensor, shades: tuple[str, ...]) -> list[str]:
    return ["".join(shades[level] for level in row) for row in levels.tolist()]


def _tokens(count: int) -> str:
    return f"{count:,} token{'s' * (count != 1)}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
