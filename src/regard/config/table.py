"""How tables are read: dataclasses, choices between them, and the annotations of their fields."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from regard.config import notation
from regard.config.choice import Choice, kinds, presets
from regard.config.key_path import FlagText, KeyPath, describe, listed, nearest
from regard.config.notation import PlainTable
from regard.config.parts import outside
from regard.config.shape import Boolean, Float, Integer, Maybe, OneOf, PathShape, Shape, String, TupleOf
from regard.errors import UserError

_SCALARS = {int: Integer(), float: Float(), bool: Boolean(), str: String(), Path: PathShape()}


@cache
def shape_of(annotation: object) -> Shape:
    """The shape of an annotation; TypeError if configs cannot hold it."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return OneOf(arguments)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return Maybe(shape_of(next(argument for argument in arguments if argument is not type(None))))
    if origin is tuple and arguments:
        repeats = arguments[-1] is Ellipsis
        return TupleOf(tuple(map(shape_of, arguments[:1] if repeats else arguments)), repeats)
    if isinstance(annotation, type) and issubclass(annotation, Choice) and annotation is not Choice:
        return ChoiceShape(annotation)
    if isinstance(annotation, type) and is_dataclass(annotation):
        return Table(annotation)
    raise TypeError(
        f"configs cannot hold {annotation!r}: use int, float, bool, str, Literal, T | None, tuple[T, ...], "
        "a frozen dataclass, or a subclass of Choice"
    )


class Table(Shape):
    """A frozen dataclass: a table with exactly its fields as keys."""

    name, expects, example = "table", "a table", {}

    def __init__(self, cls: type, kind: str | None = None) -> None:
        parameters = getattr(cls, "__dataclass_params__", None)
        if parameters is None or not parameters.frozen:
            raise TypeError(f"{cls.__name__} holds configuration, so make it a @dataclass(frozen=True)")
        self.cls, self.kind = cls, kind

    @cached_property
    def fields(self) -> dict[str, tuple[Field[object], Shape]]:
        """Each field that can be given, with its shape."""
        try:
            hints = get_type_hints(self.cls)
        except NameError as error:
            raise TypeError(
                f"{self.cls.__name__}: {error}; its module must import the types of its fields at run time"
            ) from error
        found = {field.name: (field, shape_of(hints[field.name])) for field in fields(self.cls) if field.init}
        if self.kind is not None and "kind" in found:
            raise TypeError(f"{self.cls.__name__}: `kind` names the choice itself; rename that field")
        return found

    def read(self, given: object, base: object, place: KeyPath) -> object:
        if base is not None and type(base) is not self.cls:
            raise TypeError(f"{place} is declared as {self.cls.__name__} but holds a {type(base).__name__}")
        given, base = opened(given, base, place)
        if not isinstance(given, Mapping) or "" in given:
            raise self.wrong(given[""] if isinstance(given, Mapping) else given, place)
        for name in given:
            if name not in self.fields:
                raise self._unknown(str(name), base, place)
        values = {}
        for name, (field, shape) in self.fields.items():
            if name in given:
                here = place.child(name, example_of(field))
                values[name] = shape.read(given[name], getattr(base, name, None), here)
            elif base is not None:
                values[name] = getattr(base, name)
            elif default_of(field) is MISSING:
                raise self._missing(name, shape, place)
        try:
            return self.cls(**values)
        except ValueError as error:
            raise invalid(error, place) from error

    def wrong(self, given: object, place: KeyPath) -> UserError:
        if not self.fields:
            how = f"a table without keys; write {place.assign({})}"
        else:
            name, (field, shape) = next(iter(self.fields.items()))
            right = shape.example if example_of(field) is None else example_of(field)
            how = f"a table of {listed(self.fields)}; write "
            how += place.child(name).assign(right) if place.flags else place.assign({name: right})
        return place.error(f"{place} is {describe(given)}, but must be {how}")

    def _unknown(self, name: str, base: object, place: KeyPath) -> UserError:
        unknown = f"unknown key {place.child(name)}"
        from regard.config.keys import table_keys

        paths = [*reversed([key.path for key in table_keys(self, base)]), *self.fields]  # the last of a name wins
        deeper = {path.rpartition(".")[2]: path for path in paths}
        if meant := nearest(name, self.fields) or nearest(name, deeper):
            return place.error(f"{unknown}; did you mean {place.child(deeper[meant])}?")
        title = str(place) if self.kind is None else f'{place} of kind "{self.kind}"'
        known = f"has the keys {listed(self.fields)}" if self.fields else "has no keys, so leave it out"
        return place.error(f"{unknown}; {title} {known}")

    def _missing(self, name: str, shape: Shape, place: KeyPath) -> UserError:
        here = place.child(name)
        how = here.assign(shape.example)
        if isinstance(shape, Table | ChoiceShape) and not place.flags:
            how = f"`[{'.'.join(map(notation.key, here.path))}]`"
            how += f" with `kind = {notation.value(shape.example)}`" if isinstance(shape, ChoiceShape) else ""
        return place.error(f"missing key {here}, {shape.expects} without a default; add {how}")


class ChoiceShape(Shape):
    """A choice: a table with a `kind`, or the kind alone where its defaults will do."""

    name = "choice"

    def __init__(self, cls: type[Choice]) -> None:
        self.cls = cls

    @property
    def kinds(self) -> dict[str, type[Choice]]:
        """The members known now: a union is open, so this is looked up each time."""
        known = kinds(self.cls)
        if not known:
            raise TypeError(f"{self.cls.__name__} has no kinds yet: import the module that defines them first")
        return known

    @property
    def presets(self) -> dict[str, Choice]:
        """Configs that can be chosen by name, like a kind."""
        return presets(self.cls)

    @property
    def expects(self) -> str:  # type: ignore[override]  (a class attribute in the base)
        names = ", ".join(f'"{kind}"{outside(member)}' for kind, member in self.kinds.items())
        more = f" or of the presets {listed(self.presets, chr(34))}" if self.presets else ""
        return ("one of the kinds " if len(self.kinds) > 1 else "the kind ") + names + more

    @property
    def example(self) -> str:  # type: ignore[override]  (likewise)
        return next(iter(self.kinds))

    def read(self, given: object, base: object, place: KeyPath) -> object:
        given, base = opened(given, base, place)
        if isinstance(given, str) and (given in self.kinds or given in self.presets):
            given = {"kind": given}
        if not isinstance(given, Mapping):
            raise self.wrong(given, place)
        member, base = self._start(given, base, place)
        table = table_of(member)
        keys = {name: value for name, value in given.items() if name not in ("", "kind")}
        for name in keys:
            owners = [kind for kind, other in self.kinds.items() if name in table_of(other).fields]
            if name not in table.fields and owners:
                raise place.error(
                    f'unknown key {place.child(name)}: {place} is of kind "{member.kind}", and `{name}` '
                    f'belongs to kind "{owners[0]}"; write {self._choose(owners[0], place)} too, or leave the key out'
                )
        # Another kind starts from its own defaults; the same kind keeps what it had.
        return table.read(keys, base if type(base) is member else None, place)

    def closest(self, given: object) -> str | None:
        return nearest(given, [*self.kinds, *self.presets]) if isinstance(given, str) else None

    def wrong(self, given: object, place: KeyPath) -> UserError:
        usual = place.example.get("kind") if isinstance(place.example, dict) else None
        return super().wrong(given, place._replace(example=usual))

    def _start(self, given: Mapping[str, object], base: object, place: KeyPath) -> tuple[type[Choice], object]:
        """The kind, and the config whose values hold for the keys that are not given."""
        named = [given[name] for name in ("", "kind") if name in given]
        if len(named) == 2 and named[0] != named[1]:
            raise place.error(f"{place} is given two kinds, {listed(map(str, named))}; leave out one of the two")
        if named:
            kind = named[0]
            if not isinstance(kind, str):
                raise self.wrong(kind, place if place.flags else place.child("kind"))
            if kind in self.presets:
                return type(self.presets[kind]), self.presets[kind]
            if kind not in self.kinds:
                right = self._choose(self.closest(kind) or self.example, place)
                given_kind = notation.quoted(kind)
                raise place.error(f"{place} is of kind {given_kind}, but must be {self.expects}; write {right}")
            return self.kinds[kind], base
        if isinstance(base, Choice):
            return type(base), base
        if self.cls.__dict__.get("kind"):
            return self.cls, base  # the annotation names one member, so `kind` may be left out
        raise place.error(f"{place} needs a kind, {self.expects}; write {self._choose(self.example, place)}")

    def _choose(self, kind: str, place: KeyPath) -> str:
        return place.assign(kind) if place.flags and place.path else place.child("kind").assign(kind)


@cache
def table_of(member: type[Choice]) -> Table:
    """The table of one kind."""
    return Table(member, member.kind)


def opened(given: object, base: object, place: KeyPath) -> tuple[object, object]:
    """`given` and `base`; a whole table in TOML from the command line is parsed, and replaces the base."""
    text = given.get("") if isinstance(given, Mapping) else given
    if not isinstance(text, FlagText) or not text.startswith("{"):
        return given, base
    if isinstance(given, Mapping) and (others := [name for name in given if name]):
        raise place.error(f"{place} is given whole, so write `{others[0]}` inside it, not as another key")
    try:
        return notation.parse(text), None
    except ValueError as error:
        raise place.error(f"{place} is {describe(text)}, which is not a TOML table: {error}") from None


def invalid(error: ValueError, place: KeyPath) -> UserError:
    """A config's own objection to its values, with the place it is about."""
    return place.error(f"{place}: {error}" if place.path else str(error))


def plain(value: object) -> Any:
    """`value` as TOML and JSON hold it: dicts, lists, text, numbers and booleans, with "none" for None."""
    if is_dataclass(value) and not isinstance(value, type):
        table: PlainTable = {"kind": value.kind} if isinstance(value, Choice) else {}
        for field in fields(value):
            inner = getattr(value, field.name)
            # TOML has no null. Left out, a key takes its default, so None is left out where that is the default.
            if field.init and not (inner is None and field.default is None):
                table[field.name] = plain(inner)
        return table
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if value is None or isinstance(value, Path):
        return "none" if value is None else str(value)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)  # a subclass (numpy's float64, an enum of text) is written as the plain type it is
    raise TypeError(f"a {type(value).__name__} has no place in a config: {value!r}")


def default_of(field: Field[object]) -> object:
    """A field's default, MISSING if it must be given."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def example_of(field: Field[object]) -> object:
    """A field's own example, or its default as a plain value; None where that would be no example."""
    default = field.metadata.get("example", default_of(field))
    return None if default is MISSING or default is None or default == () else plain(default)
