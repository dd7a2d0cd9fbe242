"""The built-in sources: every file in this folder declares one, as `SOURCE`."""

import importlib
import pkgutil
from types import ModuleType

from regard.config import nearest
from regard.config.parts import NameTaken, catalog, defining, outside, place_of
from regard.data.origins.source import Source
from regard.errors import UserError


class UnknownSource(UserError, ValueError):
    """No source has that name."""


def _discovered() -> dict[str, Source]:
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [importlib.import_module(f"{__name__}.{module}").SOURCE for module in modules]
    return {source.name: source for source in sorted(found, key=lambda source: source.name)}


SOURCES: dict[str, Source] = _discovered()


def _outside() -> dict[str, ModuleType]:
    """The modules from outside the package that define a `SOURCE`, by its name."""
    found = {module.SOURCE.name: module for module in defining("SOURCE").values()}
    for name in set(found) & set(SOURCES):
        raise NameTaken(f"there is a source {name!r} already (regard.data.sources); rename {place_of(found[name])}'s")
    return found


catalog("source", _outside)


def all_sources() -> dict[str, Source]:
    """Every source by name, with those from outside the package."""
    return {**SOURCES, **{name: module.SOURCE for name, module in _outside().items()}}


def check_form(name: str, form: str) -> None:
    """Refuse a source whose examples have another form (``Source.labels``)."""
    if find_source(name).labels != form:
        known = ", ".join(one for one, source in all_sources().items() if source.labels == form)
        raise ValueError(f"source '{name}' has no {form}; with {form} are: {known}")


def find_source(name: str) -> Source:
    """The source of that name; an error suggests the nearest one.

    >>> find_source("plays").title
    "Shakespeare's plays"
    """
    known = all_sources()
    if name in known:
        return known[name]
    near = nearest(name, known)
    places = _outside()
    names = ", ".join(one + (outside(places[one]) if one in places else "") for one in sorted(known))
    hint = f"did you mean '{near}'?" if near else f"choose from {names}"
    raise UnknownSource(f"there is no source called '{name}'; {hint}")
