"""Plain values to configs and back, strictly."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from regard.config.key_path import KeyPath
from regard.config.table import ChoiceShape, Table, invalid, plain, shape_of
from regard.errors import UserError

C = TypeVar("C")


def load(cls: type[C], mapping: Mapping[str, Any] | str, source: str | os.PathLike[str] = "config") -> C:
    """A `cls` from plain values, as `tomllib` reads them.

    Every key must be known and every value of the declared type; a key left out takes its class's default.
    A table starts from the defaults of its class, wherever it is. The one
    conversion is int to float. UserError names the source, the key and the fix.

        >>> load(RotaryConfig, {"base": 5e5})
        RotaryConfig(base=500000.0)
    """
    return read_onto(None, cls, mapping, KeyPath(str(source)))


def read_onto(base: object, cls: type[C], given: object, place: KeyPath) -> C:
    """A `cls` from what is given; other keys keep their value in `base` (None for `load`). Runs every `check`."""
    shape = shape_of(cls)
    if not isinstance(shape, Table | ChoiceShape):
        raise TypeError(f"{cls!r} is not a config: make it a frozen dataclass or a subclass of Choice")
    config = shape.read(given, base, place)
    _check(config, place)
    return config


def dump(config: Any) -> dict[str, Any]:
    """`config` as a plain dict, such that `load(type(config), dump(config)) == config`.

    Every key is written. None, which TOML lacks, is left out where it is the default and "none" elsewhere.
    A choice carries its `kind`. Should the config hold what cannot be read back (a list where a tuple is
    declared, the text "none" where that means no value), UserError says so now, not when the file is needed.
    """
    table = plain(config)
    if not isinstance(table, dict):
        raise TypeError(f"{config!r} is not a config: dump takes an instance of a frozen dataclass")
    source = type(config).__name__
    again = load(type(config), table, source)
    if again != config:
        raise _unfaithful(config, again, KeyPath(source))
    return table


def _check(config: Any, place: KeyPath) -> None:
    """Calls every `check` in the tree, the innermost first."""
    if isinstance(config, tuple):
        for index, item in enumerate(config):
            _check(item, place.item(index))
    elif is_dataclass(config):
        for field in fields(config):
            _check(getattr(config, field.name), place.child(field.name))
        check = getattr(type(config), "check", None)
        if callable(check):
            try:
                check(config)
            except ValueError as error:
                raise invalid(error, place) from error


def _unfaithful(config: Any, again: Any, place: KeyPath) -> UserError:
    """The error for the first key that would be read back as something else."""
    if is_dataclass(config) and type(config) is type(again):
        for field in fields(config):
            old, new = getattr(config, field.name), getattr(again, field.name)
            if field.compare and old != new:
                return _unfaithful(old, new, place.child(field.name))
    return place.error(f"{place} is {config!r}, but a file would give back {again!r}; use a value that can be written")
