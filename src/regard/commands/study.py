"""`regard study`."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated

import tyro

from regard.errors import UserError

StudyName = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[STUDY]", help_behavior_hint="")]


def study(
    name: StudyName = None, /, *, scale: float = 1.0, seed: int = 1, out: Path = Path("studies"), json: bool = False
) -> int:
    """Measure an argument of the notes: what attention, gates, residual paths and parallel work are worth.

    Args:
        name: Which one; without it, they are listed.
        scale: How thoroughly: 0.1 trains a tenth as long, for a first look.
        seed: Decides weights and batches.
        out: The folder for the page and its numbers.
        json: Print the numbers as JSON.
    """
    from regard.studies import about, get, names

    if name is None:
        listed = {one: about(one) for one in names()}
        lines = [f"{one:12} {text.splitlines()[0] if text else ''}" for one, text in listed.items()]
        print(jsonlib.dumps(listed) if json else "\n".join(lines))
        return 0
    if not 0 < scale <= 100:
        raise UserError(f"--scale must be above 0 and at most 100, not {scale}")
    function = get(name)
    from regard.studies.page import write

    found = function(scale, seed, lambda line: print(line, file=sys.stderr, flush=True))
    path = write(found, out)
    if json:
        print(jsonlib.dumps({"name": found.name, "answer": found.answer, "page": str(path), **found.numbers}))
    else:
        print("\n".join([found.question, *found.answer, f"{path} shows it"]))
    return 0
