"""A config as plain values: what TOML and JSON can hold."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from regard.config.choice import Choice


def plain(value: Any) -> Any:
    """`value` as dicts, lists, text, numbers and booleans, with "none" for None."""
    if is_dataclass(value) and not isinstance(value, type):
        return _table(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None:
        return "none"
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)  # a subclass (numpy's float64, an enum of text) is written as the plain kind it is
    raise TypeError(f"a {type(value).__name__} has no place in a config: {value!r}")


def _table(config: Any) -> dict[str, Any]:
    table: dict[str, Any] = {"kind": type(config).kind} if issubclass(type(config), Choice) else {}
    for field in fields(config):
        value = getattr(config, field.name)
        # TOML has no null. Left out, a key takes its default, so None is left out where that is the default.
        if field.init and not (value is None and field.default is None):
            table[field.name] = plain(value)
    return table


def default_of(field: Field[Any]) -> Any:
    """A field's default, MISSING if it must be given."""
    return field.default if field.default_factory is MISSING else field.default_factory()
