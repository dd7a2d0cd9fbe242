"""A mask over one text in numbers, as text for the terminal and as SVG. Rows are queries, columns are keys.

Counts come from ``Mask.allows``, a few rows at a time. Next to the pairs is the layout of tiles that fast paths use
(skipped, computed with the mask, computed without it), from ``Mask.verdict`` alone. Where the two differ, the block
bounds are loose: a tile without any allowed pair is computed.
"""

import base64
from html import escape
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.backends.choose import Explanation, explain
from regard.attention.call import Plan
from regard.attention.masks.expression import write
from regard.attention.masks.mask import BlockBounds, Mask
from regard.attention.mechanism import Softmax
from regard.attention.slots import Range, make_pairs
from regard.errors import UserError
from regard.pages.numbers import plural
from regard.pages.svg import cell_paths, moved, picture, rectangle, tag, text

LONGEST = 16_384  # tokens; the mask is evaluated for every pair
LENGTH = 32  # tokens of a picture in a notebook
PAIRS = 2**22  # pairs evaluated at a time
EMPTY, PARTIAL, FULL = 0, 1, 2
#: Nothing allowed, up to a third, up to two thirds, less than all, all. A tile's shade is twice its kind.
SHADES = ("··", "░░", "▒▒", "▓▓", "██")
PLAIN = (". ", "- ", "+ ", "* ", "# ")  # for terminals without these characters
SIDE, GAP, EDGE = 512, 56, 34  # of the SVG, in pixels: a map's side, between maps, for numbers
KEY = ("skipped, nothing allowed", "partial: computed with the mask", "full: computed without it")


class MaskView(NamedTuple):
    """A mask over ``length`` tokens that attend to each other."""

    length: int
    cell: int  # tokens per cell, on both axes
    share: Tensor  # [cells, cells], the share of a cell's pairs that is allowed
    block: int  # tokens per side of a tile
    layout: Tensor  # [tiles, tiles], EMPTY, PARTIAL or FULL by the mask's own verdict
    needed: int  # tiles with an allowed pair
    allowed: int  # pairs
    explanation: Explanation  # the choice of the backend on this machine

    @property
    def pairs(self) -> int:
        return self.length**2

    @property
    def computed(self) -> int:
        """Tiles that are not skipped."""
        return int((self.layout != EMPTY).sum())

    def tiles(self, kind: int) -> int:
        return int((self.layout == kind).sum())


def view(mask: Mask, length: int, *, block: int = 8, most: int = 128) -> MaskView:
    """The counts of a mask over ``length`` tokens, in at most ``most`` cells per side."""
    if not 1 <= length <= LONGEST:
        raise UserError(f"a mask is drawn for 1 to {LONGEST:,} tokens, not {length:,}; choose another length")
    if block < 1:
        raise UserError(f"a tile has at least 1 token per side, not {block}")
    cell = -(-length // most)
    try:
        cells, tiles = _counts(mask, length, cell), _counts(mask, length, block)
    except IndexError as error:
        raise UserError(f"this mask's lists are shorter than {length} tokens; choose a shorter length") from error
    side = (torch.arange(length) // cell).bincount()  # tokens per cell; the last one may be smaller
    slots, blank = Range(length), torch.zeros(1, 1, length, 1)
    call = Softmax().call(blank, blank, blank, Plan(mask, slots, slots, True))
    return MaskView(
        length=length,
        cell=cell,
        share=cells / (side[:, None] * side),
        block=block,
        layout=layout(mask, length, block),
        needed=int((tiles > 0).sum()),
        allowed=int(cells.sum()),
        explanation=explain(call),
    )


def layout(mask: Mask, length: int, block: int) -> Tensor:
    """Which tiles are empty, partial or full, from the mask's block bounds: no pair is evaluated."""
    low = torch.arange(0, length, block)
    high = (low + block).clamp(max=length) - 1
    extent = torch.stack((low, high))
    rows, columns = extent[:, :, None], extent[:, None, :]
    # In plain text, a token's phase is its order.
    verdict = mask.verdict(BlockBounds(*rows, *columns, q_phases=rows, k_phases=columns))
    shape = (low.shape[0], low.shape[0])
    return (verdict.may.expand(shape).int() + (verdict.may & verdict.must).expand(shape).int()).cpu()


def _counts(mask: Mask, length: int, size: int) -> Tensor:
    """How many pairs of each square of ``size`` tokens are allowed: [squares, squares]."""
    squares = -(-length // size)
    counts = torch.zeros(squares, squares, dtype=torch.long)
    column = torch.arange(length) // size
    step = max(1, PAIRS // length // size) * size  # whole squares at a time
    for low in range(0, length, step):
        rows = slice(low, min(low + step, length))
        pairs = make_pairs(Range(length), Range(length), heads=1, device=torch.device("cpu"), batch=1, rows=rows)
        seen = mask.allows(pairs).expand(1, 1, rows.stop - low, length)[0, 0].long()
        narrow = seen.new_zeros(seen.shape[0], squares).index_add_(1, column, seen)
        counts.index_add_(0, torch.arange(low, rows.stop) // size, narrow)
    return counts


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
    left = [f"pairs: 1 cell = {plural(shown.cell, 'token')}", *_shaded(_levels(shown.share), shades)]
    tiles = pooled(shown.layout, max(1, width // 2))
    right = [f"tiles of {_tile_size(shown, tiles):,}", *_shaded(2 * tiles, shades)]
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
        f"{shown.computed:,} of {total:,} tiles of {plural(shown.block, 'token')} are computed "
        f"({shown.computed / total:.1%}): {shown.tiles(FULL):,} full, {shown.tiles(PARTIAL):,} partial, "
        f"{shown.tiles(EMPTY):,} skipped{loose}",
        f"backend here: {shown.explanation.chosen}",
    ]


def mask_svg(mask: Mask, length: int = 32, *, block: int = 8) -> str:
    """A mask over ``length`` tokens as a picture that follows the reader's light or dark theme."""
    shown = view(mask, length, block=block)
    tiles = pooled(shown.layout, 128)
    lines, name = words(shown), write(mask, brief=True)
    tiled = _map(2 * tiles, length, f"tiles of {plural(_tile_size(shown, tiles), 'token')}; keys")
    beside = tag("text", "queries", class_="soft", transform=f"translate(-6 {SIDE}) rotate(-90)")
    parts = [
        text(name if len(name) <= 120 else f"{name[:119]}…", EDGE, 20, "code"),
        moved(EDGE, 50, beside + _map(_levels(shown.share), length, "keys")),
        moved(EDGE + SIDE + GAP, 50, tiled),
        *(text(line, EDGE, SIDE + 74 + 16 * i, "soft") for i, line in enumerate(lines)),
        moved(EDGE + SIDE + GAP, SIDE + 64, _key()),
    ]
    about = f"{'. '.join(lines)}. Rows are queries, columns are keys."
    return picture(f"{name}, {plural(length, 'token')}", about, 2 * SIDE + GAP + 2 * EDGE, SIDE + EDGE + 96, parts)


def mask_html(mask: Mask) -> str | None:
    """The picture as an image for a notebook, of fewer tokens if the mask's tables are smaller; None: cannot be drawn.

    An image, since the style sheet of an inline SVG would apply to the whole notebook.
    """
    try:
        drawn = mask_svg(mask, LENGTH if mask.table_length is None else min(LENGTH, mask.table_length))
    except UserError:  # a mask that follows from the tokens
        return None
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawn.encode()).decode()}"
    return f'<img src="{source}" alt="{escape(str(mask))}" style="width:100%;max-width:{SIDE + 2 * GAP + 80}px">'


def _map(levels: Tensor, length: int, above: str) -> str:
    """Cells of five shades, with the numbers of the first and the last token."""
    count = levels.shape[0]
    cell = SIDE / count
    parts = [text(f"{above} 0", 0, -6, "soft"), text(str(length - 1), SIDE, -6, "soft", "end")]
    parts += [rectangle("ground", SIDE, SIDE), cell_paths(levels.tolist(), cell, cell, len(SHADES) - 1)]
    if 1 < count <= 64:  # with more cells, lines would hide them
        lines = "".join(f"M{i * cell:.2f} 0V{SIDE}M0 {i * cell:.2f}H{SIDE}" for i in range(1, count))
        parts.append(tag("path", class_="rule", d=lines))
    return "".join(parts)


def _key() -> str:
    return "".join(
        rectangle("ground", 12, 12, y=18 * i)
        + rectangle("ink", 12, 12, y=18 * i, fill_opacity=i / FULL)
        + text(label, 20, 18 * i + 10, "soft")
        for i, label in enumerate(KEY)
    )


def pooled(tiles: Tensor, most: int) -> Tensor:
    """A layout of at most ``most`` tiles per side; a pooled tile that is neither all empty nor all full is partial."""
    group = -(-tiles.shape[0] // most)
    if group == 1:
        return tiles
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
