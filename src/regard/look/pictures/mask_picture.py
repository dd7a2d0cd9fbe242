"""A mask one can see: in the terminal as shades, and as SVG. Rows are queries, columns are keys.

Beside the pairs stands the layout of tiles as fast paths see it: skipped, computed with the mask, computed without.
"""

from __future__ import annotations

from html import escape

import torch
from torch import Tensor

from regard.attention import Mask
from regard.attention.masks.expression import write
from regard.look.pictures.mask_view import EMPTY, FULL, PARTIAL, View, view

SHADES = ("··", "░░", "▒▒", "▓▓", "██")  # nothing allowed, up to a third, up to two thirds, less than all, all
PLAIN = (". ", "- ", "+ ", "* ", "# ")  # the same where a terminal has no such characters
TILES = (0, 2, 4)  # the shade of an empty, a partial and a full tile
SIDE, GAP, EDGE = 512, 56, 34  # of the SVG: a map's side, between maps, for numbers
STYLE = """
:root{--bg:#fff;--ink:#1d2430;--soft:#5a6474;--map:#f1eee6;--c0:#1d66b3;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--bg:#191d25;--ink:#e8eaee;--soft:#a2abba;--map:#262d39;--c0:#6db3ff}}
.page{fill:var(--bg)}.ground{fill:var(--map)}.ink{fill:var(--c0)}.line{stroke:var(--bg);fill:none}
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}
.soft{font-size:11px;fill:var(--soft)}.code{font:14px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
"""


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
    seen = view(mask, length, block=block, most=max(1, width // 2))
    shades = PLAIN if ascii else SHADES
    left = [f"pairs: 1 cell = {_tokens(seen.cell)}", *_shaded(_levels(seen.share), shades)]
    tiles = pooled(seen.layout, max(1, width // 2))
    size = seen.block * -(-seen.layout.shape[0] // tiles.shape[0])
    right = [f"tiles of {size:,}", *_shaded(tiles.apply_(TILES.__getitem__), shades)]
    wide = max(map(len, left))
    if wide + 3 + max(map(len, right)) <= width:
        right += [""] * (len(left) - len(right))
        left += [""] * (len(right) - len(left))
        body = [f"{one:{wide}}   {two}".rstrip() for one, two in zip(left, right, strict=True)]
    else:
        body = [line.rstrip() for line in [*left, "", *right]]
    dark, half, none = (shades[i].strip() for i in (4, 2, 0))
    key = f"{dark} all allowed   {half} some   {none} none; rows are queries, columns keys"
    return "\n".join([write(mask, brief=True), "", *body, "", key, *words(seen)])


def words(seen: View) -> list[str]:
    """The counts, and who would compute it."""
    total = seen.layout.numel()
    spare = seen.computed - seen.needed
    loose = f" ({seen.needed} hold a pair: the summary is loose)" if spare else ""
    return [
        f"{seen.allowed:,} of {seen.pairs:,} pairs are allowed ({seen.allowed / seen.pairs:.1%})",
        f"{seen.computed:,} of {total:,} tiles of {_tokens(seen.block)} are computed ({seen.computed / total:.1%}): "
        f"{seen.tiles(FULL):,} full, {seen.tiles(PARTIAL):,} partial, {seen.tiles(EMPTY):,} skipped{loose}",
        f"backend here: {seen.explanation.chosen}",
    ]


def mask_svg(mask: Mask, length: int = 32, *, block: int = 8) -> str:
    """A mask over ``length`` tokens as a picture that follows the reader's light or dark theme."""
    seen = view(mask, length, block=block)
    tiles = pooled(seen.layout, 128)
    levels = tiles.clone().apply_(TILES.__getitem__)
    told, name = words(seen), write(mask, brief=True)
    wide, high = 2 * SIDE + GAP + 2 * EDGE, SIDE + EDGE + 96
    size = seen.block * -(-seen.layout.shape[0] // tiles.shape[0])
    tiled = _map(levels, length, f"tiles of {_tokens(size)}; keys", "")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'role="img" aria-labelledby="title about"><title id="title">{escape(f"{name}, {_tokens(length)}")}</title>'
        f'<desc id="about">{escape(". ".join(told))}. Rows are queries, columns are keys.</desc>',
        f'<style>{STYLE}</style><rect class="page" width="100%" height="100%"/>',
        f'<text class="code" x="{EDGE}" y="20">{escape(_cut(name, 120))}</text>',
        f'<g transform="translate({EDGE} 50)">{_map(_levels(seen.share), length, "keys", "queries")}</g>',
        f'<g transform="translate({EDGE + SIDE + GAP} 50)">{tiled}</g>',
        *(
            f'<text class="soft" x="{EDGE}" y="{SIDE + 74 + 16 * i}">{escape(line)}</text>'
            for i, line in enumerate(told)
        ),
        f'<g transform="translate({EDGE + SIDE + GAP} {SIDE + 64})">{_key()}</g></svg>',
    ]
    return "".join(parts)


def _map(levels: Tensor, length: int, above: str, beside: str) -> str:
    """Cells of five shades, with the numbers of the first and the last token; neighbours are drawn as one."""
    count = levels.shape[0]
    cell = SIDE / count
    parts = [f'<text class="soft" x="0" y="-6">{escape(above)} 0</text>']
    parts.append(f'<text class="soft" x="{SIDE}" y="-6" text-anchor="end">{length - 1}</text>')
    if beside:
        parts.append(f'<text class="soft" transform="translate(-6 {SIDE}) rotate(-90)">{beside}</text>')
    parts.append(f'<rect class="ground" width="{SIDE}" height="{SIDE}"/>')
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(levels.tolist()):
        start = 0
        for j in range(1, count + 1):
            if j == count or row[j] != row[start]:
                run = f"M{start * cell:.2f} {i * cell:.2f}h{(j - start) * cell:.2f}v{cell:.2f}H{start * cell:.2f}z"
                paths.setdefault(row[start], []).append(run)
                start = j
    for level in sorted(set(paths) - {0}):
        parts.append(f'<path class="ink" fill-opacity="{level / 4}" d="{"".join(paths[level])}"/>')
    if count <= 64:  # beyond, lines would hide what they part
        lines = "".join(f"M{i * cell:.2f} 0V{SIDE}M0 {i * cell:.2f}H{SIDE}" for i in range(1, count))
        parts.append(f'<path class="line" d="{lines}"/>' if lines else "")
    return "".join(parts)


def _key() -> str:
    items = ((0, "skipped, nothing allowed"), (2, "partial: computed with the mask"), (4, "full: computed without it"))
    drawn = [
        f'<rect class="ground" y="{18 * i}" width="12" height="12"/><rect class="ink" fill-opacity="{level / 4}" '
        f'y="{18 * i}" width="12" height="12"/><text class="soft" x="20" y="{18 * i + 10}">{text}</text>'
        for i, (level, text) in enumerate(items)
    ]
    return "".join(drawn)


def pooled(tiles: Tensor, most: int) -> Tensor:
    """A layout in at most ``most`` tiles a side: what is not all empty or all full is partial."""
    group = -(-tiles.shape[0] // most)
    if group == 1:
        return tiles.clone()
    place = torch.arange(tiles.shape[0]) // group
    index = place[:, None] * (int(place[-1]) + 1) + place[None, :]
    found = torch.full(((int(place[-1]) + 1) ** 2,), -1, dtype=tiles.dtype)
    least = found.scatter_reduce(0, index.flatten(), tiles.flatten(), "amin", include_self=False)
    greatest = found.scatter_reduce(0, index.flatten(), tiles.flatten(), "amax", include_self=False)
    side = int(place[-1]) + 1
    return torch.where(least == greatest, least, PARTIAL).view(side, side)


def _levels(share: Tensor) -> Tensor:
    """Shares as one of five shades; only what is wholly allowed or wholly hidden gets the outer ones."""
    inner = (share * 3).floor().clamp(0, 2).int() + 1
    return torch.where(share <= 0, 0, torch.where(share >= 1, 4, inner))


def _shaded(levels: Tensor, shades: tuple[str, ...]) -> list[str]:
    return ["".join(shades[level] for level in row) for row in levels.tolist()]


def _tokens(count: int) -> str:
    return f"{count:,} token{'s' * (count != 1)}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
