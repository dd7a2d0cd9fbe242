"""`regard mask`."""

from __future__ import annotations

import json as jsonlib
import shutil
import sys
from pathlib import Path
from typing import Annotated

import tyro

from regard.errors import UserError

Expression = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[EXPRESSION]", help_behavior_hint="")]


def mask(
    expression: Expression = None,
    /,
    *,
    length: int = 32,
    block: int = 8,
    svg: Path | None = None,
    ascii: bool = False,
    json: bool = False,
) -> int:
    """See a mask: who may look at whom, and which tiles of it are computed.

    Args:
        expression: Masks joined by &, | and ~, such as "causal & window(8) | prefix(2)"; without it, they are
            listed.
        length: Tokens of the text it is drawn for.
        block: Tokens a side of a tile.
        svg: Draw it into this file too.
        ascii: Only letters that every terminal has.
        json: Print the counts as JSON.
    """
    if svg is not None and (svg.suffix.lower() != ".svg" or not svg.parent.is_dir()):
        raise UserError(f"--svg {svg} must be a file in a folder that is there, and its name must end in .svg")
    from regard.attention.masks.expression import names, parse, usage, write

    if expression is None:
        listed = {usage(one): (one.__doc__ or "").splitlines()[0] for one in names().values()}
        lines = [f"{one:28} {about}" for one, about in listed.items()]
        print(jsonlib.dumps(listed) if json else "\n".join([*lines, "&, | and ~ join them: causal & window(8)"]))
        return 0
    from regard.look.pictures.mask_picture import EMPTY, FULL, PARTIAL, draw_mask, mask_svg, view

    found = parse(expression)
    seen = view(found, length, block=block)
    if svg is not None:
        from regard.runs.disk import replace_file, writing

        with writing(str(svg)):
            replace_file(svg, mask_svg(found, length, block=block).encode())
    if json:
        told = {
            "mask": write(found),
            "length": length,
            "pairs": seen.pairs,
            "allowed": seen.allowed,
            "block": block,
            "tiles": {"full": seen.tiles(FULL), "partial": seen.tiles(PARTIAL), "skipped": seen.tiles(EMPTY)},
            "needed": seen.needed,
            "backend": seen.explanation.chosen,
            "refusals": seen.explanation.refusals,
            "svg": None if svg is None else str(svg),
        }
        print(jsonlib.dumps(told))
        return 0
    plain = ascii or not _writes("░█", sys.stdout.encoding)
    width = shutil.get_terminal_size((80, 24)).columns
    print(draw_mask(found, length, block=block, width=max(20, width), ascii=plain))
    if svg is not None:
        print(f"drawn in {svg}")
    return 0


def _writes(text: str, encoding: str | None) -> bool:
    """Whether a terminal of this encoding can show a text."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
