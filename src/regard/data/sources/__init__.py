"""The texts that can be asked for by name, one file each."""

import difflib

from regard.data.source import Source
from regard.data.sources.plays import PLAYS
from regard.errors import UserError

SOURCES: dict[str, Source] = {source.name: source for source in (PLAYS,)}


def find_source(name: str) -> Source:
    """The source of that name; a wrong name gets the nearest right one.

    >>> find_source("plays").title
    "Shakespeare's plays"
    """
    if name in SOURCES:
        return SOURCES[name]
    near = difflib.get_close_matches(name, SOURCES, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"the known ones are: {', '.join(sorted(SOURCES))}"
    raise UserError(f"there is no source called '{name}'; {hint}")
