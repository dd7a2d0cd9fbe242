"""How a value of each simple annotation is read and explained: numbers, text, paths, literals, optionals, tuples."""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from regard.config import notation
from regard.config.key_path import FlagText, KeyPath, describe, nearest
from regard.errors import UserError


class Shape:
    """One annotation. `read` converts a given value, or raises an error that says what was expected."""

    name: str  # for tables of keys: "int"
    expects: str  # for sentences: "a whole number"
    example: object = None  # a valid plain value

    def read(self, given: object, base: object, place: KeyPath) -> object:
        """The value for `given`; a table keeps what `given` does not mention from `base`, the value so far."""
        raise NotImplementedError

    def closest(self, given: object) -> object:
        """The valid plain value that `given` was probably meant to be, or None."""
        return None

    def wrong(self, given: object, place: KeyPath) -> UserError:
        """The error for a value of the wrong type."""
        if place.flags and isinstance(given, Mapping) and (below := [name for name in given if name]):
            return place.error(
                f"unknown key {place.child(below[0])}: {place} is {self.expects} and has no keys below it"
            )
        closest = self.closest(given)
        right = closest if closest is not None else self.example if place.example is None else place.example
        or_none = ', or "none"' if place.optional else ""
        return place.error(
            f"{place} is {describe(given)}, but must be {self.expects}{or_none}; write {place.assign(right)}"
        )


class Integer(Shape):
    name, expects, example = "int", "a whole number", 64

    def read(self, given: object, base: object, place: KeyPath) -> int:
        number = given
        if isinstance(given, FlagText):
            with suppress(ValueError):
                number = int(given)
        if not isinstance(number, int) or isinstance(number, bool):
            raise self.wrong(given, place)
        return int(number)

    def closest(self, given: object) -> int | None:
        number = _number(given)
        return int(number) if number is not None and number.is_integer() else None


class Float(Shape):
    name, expects, example = "float", "a number", 0.5

    def read(self, given: object, base: object, place: KeyPath) -> float:
        number = self.closest(given) if isinstance(given, FlagText | int | float) else None
        if number is None:
            raise self.wrong(given, place)
        return number

    def closest(self, given: object) -> float | None:
        number = _number(given)
        return None if number is None or math.isnan(number) else number


class Boolean(Shape):
    name, expects, example = "bool", "true or false", True

    def read(self, given: object, base: object, place: KeyPath) -> bool:
        if isinstance(given, FlagText) and given in ("true", "false"):
            return given == "true"
        if not isinstance(given, bool):
            raise self.wrong(given, place)
        return given

    def closest(self, given: object) -> bool | None:
        word = str(given).lower()
        return True if word in ("true", "yes", "on", "1") else False if word in ("false", "no", "off", "0") else None


class String(Shape):
    name, expects, example = "str", "text", "text"

    def read(self, given: object, base: object, place: KeyPath) -> str:
        if not isinstance(given, str):
            raise self.wrong(given, place)
        try:
            given.encode()
        except UnicodeEncodeError:
            raise place.error(f"{place} is {given!a}, which is not valid Unicode text; rename it") from None
        return str(given)

    def closest(self, given: object) -> str | None:
        return notation.value(given) if isinstance(given, int | float) else None


class PathShape(Shape):
    name, expects, example = "path", "a path", "file"

    def read(self, given: object, base: object, place: KeyPath) -> Path:
        if not isinstance(given, str):
            raise self.wrong(given, place)
        return Path(given)


class OneOf(Shape):
    """`Literal[...]`."""

    def __init__(self, values: tuple[str | int, ...]) -> None:
        if not all(isinstance(value, str | int) for value in values):
            raise TypeError(
                f"Literal{list(values)}: use text, integers or booleans, and `Literal[...] | None` for None"
            )
        self.values = {_spelled(value): value for value in values}
        if len(self.values) < len(values):
            raise TypeError(f"Literal{list(values)}: two of its values look the same on the command line")
        self.name = " | ".join(self.values)
        self.expects = "one of " + ", ".join(map(notation.value, values))
        self.example = values[0]

    def read(self, given: object, base: object, place: KeyPath) -> str | int:
        if isinstance(given, FlagText) and given in self.values:
            return self.values[given]
        for value in self.values.values():
            if type(given) is type(value) and given == value:  # the types too: True is 1 in Python
                return value
        raise self.wrong(given, place)

    def closest(self, given: object) -> str | int | None:
        meant = nearest(_spelled(given), self.values) if isinstance(given, str | int) else None
        return None if meant is None else self.values[meant]


class Maybe(Shape):
    """`T | None`: the word "none" means no value."""

    def __init__(self, inner: Shape) -> None:
        self.inner = inner
        self.name = f"{inner.name} | none"
        self.expects = f'{inner.expects}, or "none"'
        self.example = inner.example

    def read(self, given: object, base: object, place: KeyPath) -> object:
        if self.inner.closest("none") == "none":
            raise TypeError(f'{place}: "none" is one of its own values, so its annotation cannot end in `| None`')
        own = given.get("") if isinstance(given, Mapping) else given
        if own == "none":
            if isinstance(given, Mapping) and (below := [name for name in given if name]):
                raise place.error(
                    f"{place} is set to none and {place.child(below[0])} to a value; leave out one of the two"
                )
            return None
        return None if given is None else self.inner.read(given, base, place._replace(optional=True))


class TupleOf(Shape):
    """`tuple[T, ...]` (many of one shape) and `tuple[A, B]` (one of each)."""

    def __init__(self, elements: tuple[Shape, ...], repeats: bool) -> None:
        self.elements, self.repeats = elements, repeats
        self.name = f"{elements[0].name}, ..." if repeats else ", ".join(element.name for element in elements)
        inside = {element.expects for element in elements}
        self.expects = "a list" if repeats else f"a list of {len(elements)}"
        self.expects += f", each {inside.pop()}" if len(inside) == 1 else ""
        self.example = [element.example for element in elements]

    def read(self, given: object, base: object, place: KeyPath) -> tuple[object, ...]:
        items = given
        if isinstance(given, FlagText):
            try:
                items = notation.parse(given) if given.startswith("[") else _split(given)
            except ValueError as error:
                raise place.error(f"{place} is {describe(given)}, which is not a TOML list: {error}") from None
        if not isinstance(items, list | tuple):
            raise self.wrong(given, place)
        if not self.repeats and len(items) != len(self.elements):
            right = self.example if place.example is None else place.example
            raise place.error(
                f"{place} is a list of {len(items)}, but must be {self.expects}; write {place.assign(right)}"
            )
        shapes = self.elements * len(items) if self.repeats else self.elements
        return tuple(
            shape.read(item, None, place.item(index))
            for index, (shape, item) in enumerate(zip(shapes, items, strict=True))
        )

    def closest(self, given: object) -> list[object] | None:
        if not self.repeats or isinstance(given, Mapping):
            return None
        try:
            self.elements[0].read(given, None, KeyPath("", ("item",)))
        except UserError:
            return None
        return [given]


def _number(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return None
    try:
        return float(given)
    except (ValueError, OverflowError):
        return None


def _spelled(value: object) -> str:
    return value if isinstance(value, str) else notation.value(value)


def _split(text: str) -> list[FlagText]:
    return [FlagText(item.strip()) for item in text.split(",")] if text else []
