"""Plain values and TOML to configs and back, strictly."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TypeVar, cast

from regard.config import notation
from regard.config.choice import Choice
from regard.config.key_path import KeyPath, short
from regard.config.notation import PlainTable
from regard.config.shape import Maybe
from regard.config.table import ChoiceShape, Table, invalid, plain, shape_of, table_of
from regard.errors import UserError
from regard.untrusted import read_plain

C = TypeVar("C")


def load(cls: type[C], mapping: Mapping[str, object] | str, source: str | os.PathLike[str] = "config") -> C:
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
    return cast(C, config)


def read_field(cls: type, name: str, given: object) -> object:
    """A value that Python code gave for a field of `cls`: names of kinds and dicts are read, others are kept."""
    table = table_of(cls) if issubclass(cls, Choice) else shape_of(cls)
    assert isinstance(table, Table)
    shape = table.fields[name][1]
    if not isinstance(shape.inner if isinstance(shape, Maybe) else shape, ChoiceShape | Table):
        return given
    place = KeyPath(cls.__name__, (name,))
    config = shape.read(given, None, place)
    _check(config, place)
    return config


def dump(config: object) -> PlainTable:
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


def _check(config: object, place: KeyPath) -> None:
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


def _unfaithful(config: object, again: object, place: KeyPath) -> UserError:
    """The error for the first key that would be read back as something else."""
    if is_dataclass(config) and type(config) is type(again):
        for field in fields(config):
            old, new = getattr(config, field.name), getattr(again, field.name)
            if field.compare and old != new:
                return _unfaithful(old, new, place.child(field.name))
    return place.error(f"{place} is {config!r}, but a file would give back {again!r}; use a value that can be written")


def to_toml(config: object) -> str:
    """`config` as TOML text with every key written; `load` of it gives an equal config."""
    return "\n".join(_lines(dump(config), ())).lstrip("\n") + "\n"


def _lines(table: PlainTable, path: tuple[str, ...]) -> Iterator[str]:
    """A table's own keys first: after a `[header]` they would belong to that one."""
    own = {name: value for name, value in table.items() if not isinstance(value, dict)}
    tables = {name: value for name, value in table.items() if isinstance(value, dict)}
    if path and (own or not tables):
        yield ""
        yield f"[{'.'.join(map(notation.key, path))}]"
    for name, value in own.items():
        yield f"{notation.key(name)} = {notation.value(value)}"
    for name, value in tables.items():
        yield from _lines(value, (*path, name))


def read_toml(path: str | os.PathLike[str]) -> PlainTable:
    """The plain values in a TOML file; UserError if the file or its TOML is at fault."""
    import tomllib  # only where TOML is read: importing regard.config stays cheap

    try:
        text = read_plain(Path(path), notation.LARGEST, follow=True).decode(
            "utf-8-sig"
        )  # some editors begin with a mark
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8 text; save the file as UTF-8") from None
    try:
        return notation.parse_document(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: {_explained(str(error), text)}") from None
    except ValueError as error:  # nested too deeply, or an integer of thousands of digits
        raise UserError(f"{path}: {error}") from None


def _explained(message: str, text: str) -> str:
    """tomllib says `Invalid value (at line 3, column 9)`: put the line first and show it."""
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL)
    if found is None:
        return f"not valid TOML: {message}"
    what, line, column = found[1], int(found[2]), found[3]
    shown = text.split("\n")[line - 1].strip()
    return f"line {line}, column {column} is not valid TOML: {what[:1].lower()}{what[1:]} in `{short(shown)}`"
