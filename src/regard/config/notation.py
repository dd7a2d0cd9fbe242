"""Plain values as TOML writes them: the small hand-written writer, and reading one value back."""

import json
import re
from typing import Any

from regard.untrusted import check_depth

JsonObject = dict[str, Any]
PlainTable = JsonObject  # a config as TOML and JSON hold it
#: The largest TOML file in bytes, and the most dots in one of its lines: tomllib takes quadratic time for long keys.
LARGEST, DOTS = 256 * 2**10, 256


def quoted(text: str) -> str:
    """A string on one line, in double quotes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key(name: str) -> str:
    """A key, quoted only where TOML needs it: Python's names may go beyond ASCII, its bare keys may not."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def value(plain: object) -> str:
    """One value on one line; a dict becomes an inline table."""
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, int | float):  # the shortest text that reads back as the same number
        return int.__repr__(plain) if isinstance(plain, int) else float.__repr__(plain)
    if isinstance(plain, str):
        return quoted(plain)
    if isinstance(plain, list | tuple):
        return "[" + ", ".join(map(value, plain)) + "]"
    if isinstance(plain, dict):
        return "{" + ", ".join(f"{key(name)} = {value(inner)}" for name, inner in plain.items()) + "}"
    raise TypeError(f"a {type(plain).__name__} has no place in a config: {plain!r}")


def parse(text: str) -> object:
    """The value that `text` spells in TOML; ValueError if it spells none, or more than one."""
    document = parse_document(f"value = {text}")
    if set(document) != {"value"}:
        raise ValueError("more than one value")
    return document["value"]


def parse_document(text: str) -> PlainTable:
    """The values of a TOML document; ValueError if it is not valid, or nested too deeply."""
    import tomllib  # only where TOML is read: importing regard.config stays cheap

    if max(line.count(".") for line in text.split("\n")) > DOTS:
        raise ValueError(f"a line has more than {DOTS} dots; break it")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError("the tables or lists are nested too deeply; flatten them") from None
    check_depth(document)
    return document
