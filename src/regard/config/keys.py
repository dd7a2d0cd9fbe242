"""The keys of a config, for help texts and forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, field
from functools import cache
from typing import Any, NamedTuple, TypeVar

from regard.config.choice import Choice
from regard.config.plain import default_of
from regard.config.shape import Maybe, OneOf, Shape
from regard.config.table import Part, Table, shape_of, table_of

T = TypeVar("T")


class Key(NamedTuple):
    """One key that a file or the command line can set."""

    path: str  # "model.position.base"
    type: str  # "float", "int | none", "float, ...", "choice"
    default: Any  # the value, for an instance; the default, for a class; for a choice, the kind
    help: str
    choices: tuple[str, ...] = ()  # kinds of a choice, values of a Literal
    required: bool = False  # a class's field without a default


def option(default: T, help: str) -> T:
    """A field with a default and a line of help: `width: int = option(128, "features per token")`."""
    return field(default=default, metadata={"help": help})


def keys(config: Any) -> list[Key]:
    """Every key of a config, or of a config class with its defaults.

    A choice gives a key for its kind and then the keys of the kind it has (in a class: has by default).
    """
    cls = config if isinstance(config, type) else type(config)
    value = MISSING if isinstance(config, type) else config
    shape = shape_of(cls)
    if isinstance(shape, Part) and cls.__dict__.get("kind"):
        shape = table_of(cls)
    if isinstance(shape, Table):
        return list(_of_table(shape, value, "", ()))
    return list(_of_key(shape, value, "kind", "", "kind", ()))


def _of_table(table: Table, config: Any, prefix: str, within: tuple[type, ...]) -> Iterator[Key]:
    if table.cls in within:  # a class that may hold itself has no end of keys
        return
    for name, (declared, shape) in table.fields.items():
        value = default_of(declared) if config in (MISSING, None) else getattr(config, name)
        help = declared.metadata.get("help") or _documentation(table.cls, name)
        yield from _of_key(shape, value, prefix + name, help, prefix + name, (*within, table.cls))


def _of_key(shape: Shape, value: Any, path: str, help: str, prefix: str, within: tuple[type, ...]) -> Iterator[Key]:
    inner = shape.inner if isinstance(shape, Maybe) else shape
    absent = value is MISSING
    if isinstance(inner, Part):
        chosen = value if isinstance(value, Choice) else None
        yield Key(path, shape.name, chosen and chosen.kind, help, tuple(inner.kinds), absent)
        if chosen is not None:
            yield from _of_table(table_of(type(chosen)), chosen, f"{prefix}.", within)
    elif isinstance(inner, Table):
        if inner is not shape:
            yield Key(path, shape.name, None if absent else value, help, (), absent)
        yield from _of_table(inner, value, f"{prefix}.", within)
    else:
        choices = tuple(inner.values) if isinstance(inner, OneOf) else ()
        yield Key(path, shape.name, None if absent else value, help, choices, absent)


def _documentation(cls: type, name: str) -> str:
    return next((found[name] for base in cls.__mro__ if name in (found := _documented(base))), "")


@cache
def _documented(cls: type) -> dict[str, str]:
    """Help written in the source: a `#:` comment above or beside a field, or a string after it."""
    import ast  # only where help is shown
    import inspect
    import textwrap

    try:
        source = textwrap.dedent(inspect.getsource(cls))
        body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    except (OSError, TypeError, SyntaxError):  # typed at a prompt, or made by other code
        return {}
    lines = source.splitlines()
    found = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        beside = lines[(node.end_lineno or 1) - 1].encode()[node.end_col_offset :].decode().strip()
        above = []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.strip().startswith("#:"):
                break
            above.insert(0, line.strip()[2:].strip())
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[node.target.id] = " ".join(after.value.value.split())
        elif beside.startswith("#:"):
            found[node.target.id] = beside[2:].strip()
        elif above:
            found[node.target.id] = " ".join(above)
    return found
