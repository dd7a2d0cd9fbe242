"""The key that a value was given for, so that every error names the source, the key and the fix."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from regard.config import notation
from regard.errors import UserError


class FlagText(str):
    """A value from the command line; its type follows from the key that it is given for."""


class KeyPath(NamedTuple):
    """One key of one source."""

    source: str
    path: tuple[str, ...] = ()
    style: Literal["toml", "flag", "positional"] = "toml"  # how the source writes keys: `b = 1`, `--a.b 1`, `1`
    optional: bool = False  # whether "none" is a valid value
    example: object = None  # a valid value: the default, where there is one

    @property
    def flags(self) -> bool:
        """Whether the source is the command line."""
        return self.style != "toml"

    def child(self, name: str, example: object = None) -> "KeyPath":
        """The key `name` below this one."""
        return KeyPath(self.source, (*self.path, name), self.style, False, example)

    def item(self, index: int) -> "KeyPath":
        """One element of this key's tuple."""
        return KeyPath(self.source, (*self.path[:-1], f"{self.path[-1]}[{index}]"), self.style)

    def __str__(self) -> str:
        if not self.path:
            return "the config"
        return f"`{'--' if self.style == 'flag' else ''}{'.'.join(self.path)}`"

    def error(self, message: str) -> UserError:
        """An error that begins with the source."""
        return UserError(f"{self.source}: {message}")

    def assign(self, plain: object) -> str:
        """The text that gives this key the value `plain`, in the notation of the source."""
        if not self.path or self.path[-1].endswith("]"):
            return f"`{notation.value(plain)}`"
        if not self.flags:
            return f"`{notation.key(self.path[-1])} = {notation.value(plain)}`"
        import shlex

        text = shlex.quote(flag_text(plain))
        return f"`--{'.'.join(self.path)} {text}`" if self.style == "flag" else f"`{text}`"


def flag_text(plain: object) -> str:
    """A plain value as a command-line argument: text as it is, `a,b` for simple lists, TOML for the rest."""
    if isinstance(plain, str):
        return plain
    if isinstance(plain, list | tuple) and plain and not any(isinstance(item, str | list | dict) for item in plain):
        return ",".join(map(notation.value, plain))
    return notation.value(plain)


def short(text: str) -> str:
    """`text`, cut to 80 characters."""
    return text if len(text) <= 80 else text[:76] + " ..."


def describe(given: object) -> str:
    """A value and its type, for error messages."""
    if isinstance(given, FlagText):
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
    return "None" if given is None else f"the {type(given).__name__} {short(str(given))}"


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of `names` that is most similar to `name`; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)), None)


def hint(name: str, names: Sequence[str]) -> str:
    """The rest of an error about an unknown name: the nearest valid one, or all of them."""
    near = nearest(name, names)
    return f"did you mean {near}?" if near else f"choose from {', '.join(names)}"


def listed(names: Iterable[str], quote: str = "`") -> str:
    """The names in quotes, separated by commas."""
    return ", ".join(f"{quote}{name}{quote}" for name in names)
