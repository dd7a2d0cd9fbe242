"""The keys of a config, for help texts and forms."""

from collections.abc import Iterator
from dataclasses import MISSING, field
from typing import NamedTuple, TypeVar

from regard.config.choice import Choice
from regard.config.shape import Maybe, OneOf, Shape
from regard.config.table import ChoiceShape, Table, default_of, shape_of, table_of

T = TypeVar("T")


class Key(NamedTuple):
    """One key that a file or the command line can set."""

    path: str  # "model.position.base"
    type: str  # "float", "int | none", "float, ...", "choice"
    default: object  # the value, for an instance; the default, for a class; for a choice, the kind
    help: str
    choices: tuple[str, ...] = ()  # kinds and presets of a choice, values of a Literal
    required: bool = False  # a class's field without a default


def option(default: T, help: str, **metadata: object) -> T:
    """A field with a default and a line of help: `width: int = option(128, "features per token")`.

    Its range: `least` and `most`, or without the ends `above` and `below`; `check` refuses other numbers.
    `example` is a valid value for errors, where the default is none. For options of a command: `metavar` is shown
    instead of the type, `repeated` takes one value each time.
    """
    return field(default=default, metadata={"help": help, **metadata})


def argument(default: T, help: str, **metadata: object) -> T:
    """A positional argument of a command; with `required=True` the default is never used."""
    return option(default, help, positional=True, **metadata)


def keys(config: object) -> list[Key]:
    """Every key of a config, or of a config class with its defaults.

    A choice gives a key for its kind and then the keys of the kind it has (in a class: has by default).
    """
    cls = config if isinstance(config, type) else type(config)
    value = MISSING if isinstance(config, type) else config
    shape = shape_of(cls)
    if isinstance(shape, ChoiceShape) and cls.__dict__.get("kind"):
        shape = table_of(cls)
    if isinstance(shape, Table):
        return list(table_keys(shape, value))
    return list(_keys(shape, value, "kind", "", ()))


def table_keys(table: Table, config: object, prefix: str = "", within: tuple[type, ...] = ()) -> Iterator[Key]:
    """The keys of a table and of the tables below it; `config` is an instance, None or MISSING."""
    if table.cls in within:  # a class that may hold itself has infinitely many keys
        return
    for name, (declared, shape) in table.fields.items():
        value = default_of(declared) if config in (MISSING, None) else getattr(config, name)
        yield from _keys(shape, value, prefix + name, declared.metadata.get("help", ""), (*within, table.cls))


def _keys(shape: Shape, value: object, path: str, help: str, within: tuple[type, ...]) -> Iterator[Key]:
    inner = shape.inner if isinstance(shape, Maybe) else shape
    absent = value is MISSING
    if isinstance(inner, ChoiceShape):
        chosen = value if isinstance(value, Choice) else None
        yield Key(
            path, shape.name, chosen and chosen.kind, help or _about(inner.cls), (*inner.kinds, *inner.presets), absent
        )
        if chosen is not None:
            yield from table_keys(table_of(type(chosen)), chosen, f"{path}.", within)
    elif isinstance(inner, Table):
        if inner is not shape:
            yield Key(path, shape.name, None if absent else value, help, (), absent)
        yield from table_keys(inner, value, f"{path}.", within)
    else:
        choices = tuple(inner.values) if isinstance(inner, OneOf) else ()
        yield Key(path, shape.name, None if absent else value, help, choices, absent)


def _about(union: type) -> str:
    """The first line of a union's docstring, as the help of a field without any."""
    first = (union.__doc__ or "").partition("\n")[0].rstrip(".")
    return first[:1].lower() + first[1:]
