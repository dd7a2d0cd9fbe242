"""`regard mask`."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from regard.commands.common import CommandOptions, in_columns
from regard.config import argument, option
from regard.config.parts import outside
from regard.errors import UserError
from regard.runs.disk import replace_file


@dataclass(frozen=True)
class MaskOptions(CommandOptions):
    """Options of `regard mask`."""

    expression: str | None = argument(
        None, 'masks joined by &, | and ~, such as "causal & window(8) | prefix(2)"; without it, all are listed'
    )
    length: int = option(32, "number of tokens")
    block: int = option(8, "tokens per side of a tile")
    svg: Path | None = option(None, "also draw the mask into this SVG file")
    ascii: bool = option(False, "draw with ASCII characters only")


def mask(options: MaskOptions) -> int:
    """Draw a mask: which keys each query attends to, and which tiles of scores are computed."""
    svg = options.svg
    if svg is not None and (svg.suffix.lower() != ".svg" or not svg.parent.is_dir()):
        raise UserError(f"--svg {svg} must be a file in a folder that exists, and its name must end in .svg")
    from regard.attention.masks.expression import names, parse, usage, write

    if options.expression is None:
        first = {usage(one): (one.__doc__ or "").splitlines()[0] + outside(one) for one in names().values()}
        listed = {one: about.replace("``", "`") for one, about in first.items()}
        options.show(listed, f"{in_columns(listed)}\n&, | and ~ join them: causal & window(8)")
        return 0
    from regard.attention.masks.picture import EMPTY, FULL, PARTIAL, draw_mask, mask_svg, view

    found = parse(options.expression)
    seen = view(found, options.length, block=options.block)
    if svg is not None:
        replace_file(svg, mask_svg(found, options.length, block=options.block).encode())
    if options.json:
        tiles = {"full": seen.tiles(FULL), "partial": seen.tiles(PARTIAL), "skipped": seen.tiles(EMPTY)}
        summary = {"mask": write(found), "length": options.length, "pairs": seen.pairs, "allowed": seen.allowed}
        summary |= {"block": options.block, "tiles": tiles, "needed": seen.needed, "backend": seen.explanation.chosen}
        summary |= {"refusals": seen.explanation.refusals, "svg": None if svg is None else str(svg)}
        options.show(summary, "")
        return 0
    plain = options.ascii or "?" in str("░█".encode(sys.stdout.encoding or "ascii", "replace"))
    width = shutil.get_terminal_size((80, 24)).columns
    print(draw_mask(found, options.length, block=options.block, width=max(20, width), ascii=plain))
    if svg is not None:
        print(f"drawn in {svg}")
    return 0
