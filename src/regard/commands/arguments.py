"""A command's own options, looked at before anything heavy is imported: a slip is answered in one sentence, at once.

tyro parses them afterwards and writes the help. Its complaints are boxes of many lines that know no fix; here each one
names the option, what was given and what to write.
"""

from __future__ import annotations

import difflib
import inspect
import math
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from regard.config.place import nearest
from regard.errors import UserError

#: What a person would call an option that was not found, such as `--train.steps` for `steps`; None if unknown.
Elsewhere = Callable[[str], str | None]


class Option(NamedTuple):
    """One parameter of a command."""

    name: str  # as it is written: "--top-k", or "RUN" for a place
    kind: Any  # bool, int, float, str, Path, or the values of a Literal
    many: bool  # whether several values may follow

    def check(self, text: str) -> None:
        """Refuse a value that is of another type."""
        if self.kind in (int, float):
            try:
                number = self.kind(text)
            except ValueError:
                number = math.nan
            if math.isnan(number):
                right = "a whole number" if self.kind is int else "a number"
                raise UserError(f"{self.name} is {text!r}, but must be {right}")
        elif isinstance(self.kind, tuple) and text not in self.kind:
            near = nearest(text, self.kind)
            hint = f"did you mean {near}?" if near else f"choose from {', '.join(self.kind)}"
            raise UserError(f"{self.name} is {text!r}, which is none of its values; {hint}")


def check(
    command: str, function: Callable[..., int], arguments: Sequence[str], elsewhere: Elsewhere | None = None
) -> list[str]:
    """Refuse what `function`, a command, cannot take; a request for help is always in order.

    Gives the arguments back, what has no name first: a parser loses it behind an option.
    """
    if any(argument in ("-h", "--help") for argument in arguments):
        return list(arguments)
    options, places = signature(function)
    found: dict[str, str] = {}
    left = list(arguments)
    stray: list[str] = []
    named: list[str] = []
    while left:
        argument = left.pop(0)
        if not argument.startswith("--"):
            stray.append(argument)
            continue
        written, equals, text = argument.partition("=")
        option = options.get(written.replace("_", "-"))
        if option is None:
            raise UserError(_unknown(command, written, options, elsewhere))
        values = [text] if equals else []
        if option.kind is not bool and not equals:
            while left and not left[0].startswith("--") and (option.many or not values):
                values.append(left.pop(0))
            if not values:
                raise UserError(f"{written} has no value; write {written} VALUE")
        elif option.kind is bool and equals:
            raise UserError(f"{written} is a switch and takes no value; write {written} alone, or leave it out")
        if option.name in found:
            twice = " and ".join(repr(value) for value in (found[option.name], " ".join(values)) if value)
            raise UserError(f"{written} is given twice{f' ({twice})' if twice else ''}; leave one out")
        found[option.name] = " ".join(values)
        named += [argument] if equals else [argument, *values]
        for value in values:
            option.check(value)
    for place, text in zip(places, stray, strict=False):
        place.check(text)
    if len(stray) > len(places) and not (places and places[-1].many):
        takes = " ".join(place.name for place in places) or "nothing"
        raise UserError(
            f"`regard {command}` takes {takes}, then options: there is no place for {stray[len(places)]!r} "
            "(text with spaces needs quotes)"
        )
    return [*stray, *named]


def check_overrides(arguments: Sequence[str]) -> None:
    """Refuse a key of the experiment that is given twice: which of the two was meant?"""
    found: dict[str, str] = {}
    for index, argument in enumerate(arguments):
        if not argument.startswith("--"):
            continue
        written, equals, text = argument.partition("=")
        follows = arguments[index + 1 : index + 2]
        value = text if equals else follows[0] if follows and not follows[0].startswith("--") else ""
        key = "--" + written[2:].removeprefix("no-")
        if key in found:
            twice = " and ".join(repr(value) for value in (found[key], value) if value)
            raise UserError(f"{key} is given twice{f' ({twice})' if twice else ''}; leave one out")
        found[key] = value


def signature(function: Callable[..., int]) -> tuple[dict[str, Option], list[Option]]:
    """A command's options by the name they are written with, and what it takes without a name, in order."""
    hints = get_type_hints(function, include_extras=True)
    options: dict[str, Option] = {}
    places: list[Option] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind, many, hidden = _kind(hints[name])
        if hidden:
            continue
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            places.append(Option(name.upper(), kind, many))
            continue
        written = f"--{name.rstrip('_').replace('_', '-')}"  # with_ is --with: a word of Python's own
        options[written] = Option(written, kind, many)
    return options, places


def _kind(hint: Any) -> tuple[Any, bool, bool]:
    """The type of one value, whether there may be many, and whether the parameter is not for people."""
    hidden = False
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
        hidden = any("Suppress" in repr(mark) for mark in marks)
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(inner for inner in get_args(hint) if inner is not type(None))
    many = get_origin(hint) is tuple
    if many:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return get_args(hint), many, hidden
    return hint if hint in (bool, int, float, str, Path) else str, many, hidden


def _unknown(command: str, written: str, options: dict[str, Option], elsewhere: Elsewhere | None) -> str:
    said = f"`regard {command}` has no option {written}"
    # `--nam` is `--name`; `--steps` is nearer to `--train.steps` than to `--seed`.
    close = next(iter(difflib.get_close_matches(written, options, n=1, cutoff=0.8)), None)
    if near := close or (elsewhere and elsewhere(written[2:])) or nearest(written, options):
        return f"{said}; did you mean {near}?"
    return f"{said}; `regard {command} --help` lists them"
