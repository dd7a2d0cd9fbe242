"""Where a value came from, so that every error can name the source, the key and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from regard.config import notation
from regard.errors import UserError


class Text(str):
    """A value from the command line: only the key it is meant for can say of what type it is."""


class Place(NamedTuple):
    """One key of one source."""

    source: str
    path: tuple[str, ...] = ()
    flags: bool = False  # the command line writes `--a.b 1` where TOML writes `b = 1`
    optional: bool = False  # "none" is welcome here too
    example: Any = None  # a value that would be right here: the default, where there is one

    def child(self, name: str, example: Any = None) -> Place:
        """The key `name` below this one."""
        return Place(self.source, (*self.path, name), self.flags, False, example)

    def item(self, index: int) -> Place:
        """One element of the tuple that stands here."""
        return Place(self.source, (*self.path[:-1], f"{self.path[-1]}[{index}]"), self.flags)

    def __str__(self) -> str:
        if not self.path:
            return "the config"
        return f"`{'--' if self.flags else ''}{'.'.join(self.path)}`"

    def error(self, message: str) -> UserError:
        """An error that begins with the source."""
        return UserError(f"{self.source}: {message}")

    def assign(self, plain: Any) -> str:
        """What to write, in this source's own notation, to give this key the value `plain`."""
        if not self.path or self.path[-1].endswith("]"):
            return f"`{notation.value(plain)}`"
        if not self.flags:
            return f"`{notation.key(self.path[-1])} = {notation.value(plain)}`"
        import shlex

        return f"`--{'.'.join(self.path)} {shlex.quote(flag_text(plain))}`"


def flag_text(plain: Any) -> str:
    """A plain value as the command line takes it: bare text, `a,b` for simple lists, TOML for the rest."""
    if isinstance(plain, str):
        return plain
    if isinstance(plain, list | tuple) and plain and not any(isinstance(item, str | list | dict) for item in plain):
        return ",".join(map(notation.value, plain))
    return notation.value(plain)


def short(text: str) -> str:
    """`text`, cut where it would drown the sentence around it."""
    return text if len(text) <= 80 else text[:76] + " ..."


def describe(given: Any) -> str:
    """What was given, in words."""
    if isinstance(given, Text):
        return short(notation.quoted(given))
    if isinstance(given, str):
        return "the text " + short(notation.quoted(given))
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, int):
        return f"the whole number {short(str(given))}"
    if isinstance(given, float):
        return "nan" if given != given else f"the number {given!r}"
    if isinstance(given, Mapping):
        return "a table"
    if isinstance(given, list | tuple):
        return "a list"
    if given is None:
        return "None"
    return f"the {type(given).__name__} {short(str(given))}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `name` was probably meant to be."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)


def listed(names: Iterable[str], quote: str = "`") -> str:
    """`a`, `b`, `c`"""
    return ", ".join(f"{quote}{name}{quote}" for name in names)
