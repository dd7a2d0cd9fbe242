"""Configs as TOML files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, TypeVar

from regard.config import notation
from regard.config.key_path import short
from regard.config.load import dump, load
from regard.errors import UserError

C = TypeVar("C")


def to_toml(config: Any, header: str = "") -> str:
    """`config` as TOML text with every key written; `load` of it gives an equal config.

    `header` is put on top: comments (`# ...`), or further simple keys (`schema = 1`).
    """
    import tomllib

    table = dump(config)
    try:
        extra = tomllib.loads(header)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the header is not TOML ({error}); begin each line of a comment with `# `") from None
    for name, value in extra.items():
        if name in table or isinstance(value, dict):
            raise ValueError(f"the header's `{name}` would swallow or repeat keys of the config; rename it")
    lines = list(_lines(table, ()))
    text = "\n".join(lines[1:] if lines and not lines[0] else lines) + "\n"
    return f"{header.rstrip()}\n\n{text}" if header.strip() else text


def _lines(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
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


def read(path: str | os.PathLike[str], cls: type[C]) -> C:
    """The config in a TOML file; UserError if the file, its TOML or its keys are at fault."""
    return load(cls, read_toml(path), path)


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The plain values in a TOML file, for callers with keys of their own to take out first."""
    import tomllib

    try:
        with open(path, encoding="utf-8-sig") as file:  # some editors put a byte order mark first
            text = file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8 text; save the file as UTF-8") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: {_explained(str(error), text)}") from None
    except RecursionError:
        raise UserError(f"{path}: the tables or lists are nested too deeply for a config; flatten them") from None


def _explained(message: str, text: str) -> str:
    """tomllib says `Invalid value (at line 3, column 9)`: put the line first and show it."""
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL)
    if found is None:
        return f"not valid TOML: {message}"
    what, line, column = found[1], int(found[2]), found[3]
    shown = text.split("\n")[line - 1].strip()
    return f"line {line}, column {column} is not valid TOML: {what[:1].lower()}{what[1:]} in `{short(shown)}`"
