"""Open tagged unions: a choice between parts, where adding a part is adding one class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

from regard.config.bounds import bounds_of
from regard.config.parts import NameTaken, catalog, check_dataclass, place_of

C = TypeVar("C", bound="Choice")


class Config:
    """The base of configs with fields that are choices or tables.

    In Python too, such a field takes the name of a kind or a dict, as on the command line and in TOML:
    `GPTConfig(position="learned")`, `GPTConfig(position={"kind": "rotary", "base": 5e5})`. A subclass that
    defines `__post_init__` calls this one first.
    """

    def __post_init__(self) -> None:
        for field in fields(self):  # pyright: ignore[reportArgumentType]  (every subclass is a dataclass)
            if field.init and isinstance(given := getattr(self, field.name), str | Mapping):
                from regard.config.load import read_field  # which imports this file

                object.__setattr__(self, field.name, read_field(type(self), field.name, given))

    def check(self) -> None:
        """Refuse impossible values with a ValueError that names the fix. A subclass that adds checks calls this one."""
        for name, bounds in bounds_of(type(self)).items():
            bounds.check(name, getattr(self, name))


class Choice(Config):
    """The base of all tagged unions.

    A direct subclass is one union, abstract; each class below it that names a `kind` is one of its members:

        class PositionConfig(Choice):
            "How a model encodes positions."

        @dataclass(frozen=True)
        class RotaryConfig(PositionConfig, kind="rotary"):
            base: float = 10_000.0

    A field annotated `position: PositionConfig` then takes `"rotary"` or `{kind = "rotary", base = 5e5}`.
    `add_presets` gives names to whole configs; such a name is written like a kind, and further keys change it.
    """

    kind: ClassVar[str]
    _kinds: ClassVar[dict[str, type[Choice]]]
    _presets: ClassVar[dict[str, Choice]]

    def __init_subclass__(cls, kind: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        # `@dataclass(slots=True)` makes its class a second time, without `kind=`; it is in the namespace then
        kind = kind or cls.__dict__.get("kind")
        if Choice in cls.__bases__:
            if kind is not None:
                raise TypeError(f"{cls.__name__} is a union and has no kind itself: give the kinds to its subclasses")
            cls._kinds, cls._presets = {}, {}
            catalog(
                cls.__name__.removesuffix("Config").lower(),
                lambda: {kind: check_dataclass(member) for kind, member in cls._kinds.items()},
            )
        elif kind is not None:
            _register(cls, kind)
        elif hasattr(cls, "kind"):
            raise TypeError(f'{cls.__name__} extends the kind "{cls.kind}", so it needs another kind: add kind="..."')


def _register(cls: type[Choice], kind: str) -> None:
    if not isinstance(kind, str) or not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", kind):
        raise TypeError(f"the kind of {cls.__name__} is {kind!r}; use letters, digits, and - _ . + after the first")
    for union in _unions(cls):
        other = union._kinds.get(kind)
        # The same name in the same module is the same class made again: slots=True, a reload, a notebook.
        if other and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise NameTaken(
                f'{union.__name__} has the kind "{kind}" already ({place_of(other)}); give {cls.__name__} another'
            )
        union._kinds[kind] = cls
    cls.kind = kind


def _unions(cls: type[Choice]) -> list[type[Choice]]:
    return [base for base in cls.__mro__ if Choice in base.__bases__]


def kinds(cls: type[C]) -> dict[str, type[C]]:
    """Every kind registered so far that a field annotated with `cls` takes, in order of registration."""
    return {kind: member for union in _unions(cls) for kind, member in union._kinds.items() if issubclass(member, cls)}


def add_presets(union: type[C], named: Mapping[str, C]) -> None:
    """Let files and the command line choose these configs of a union by name."""
    for name in named:
        if name in union._kinds:
            raise NameTaken(f'{union.__name__} has the kind "{name}" already; give the preset another name')
    union._presets.update(named)


def presets(cls: type[C]) -> dict[str, C]:
    """Every preset that a field annotated with `cls` takes."""
    return {
        name: preset for union in _unions(cls) for name, preset in union._presets.items() if isinstance(preset, cls)
    }
