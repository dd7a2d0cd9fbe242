"""The built-in sources: every file in this folder declares one, as `SOURCE`."""

import difflib
import importlib
import pkgutil

from regard.data.origins.source import Source
from regard.errors import UserError


def _discovered() -> dict[str, Source]:
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [importlib.import_module(f"{__name__}.{module}").SOURCE for module in modules]
    return {source.name: source for source in sorted(found, key=lambda source: source.name)}


SOURCES: dict[str, Source] = _discovered()


def find_source(name: str) -> Source:
    """The source of that name; an error suggests the nearest one.

    >>> find_source("plays").title
    "Shakespeare's plays"
    """
    if name in SOURCES:
        return SOURCES[name]
    near = difflib.get_close_matches(name, SOURCES, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"the known ones are: {', '.join(sorted(SOURCES))}"
    raise UserError(f"there is no source called '{name}'; {hint}")
