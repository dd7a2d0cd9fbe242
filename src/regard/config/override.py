"""Configs from the command line: `--model.width 256`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from regard.config.load import read_onto
from regard.config.place import Place, Text

C = TypeVar("C")


def override(config: C, argv: Sequence[str]) -> C:
    """`config` with the values that command-line arguments give to its keys.

        --model.width 256   --model.width=256          a value; one that begins with `--` needs the `=`
        --train.compile true   --no-train.compile      true or false
        --model.position rotary                        a kind: another one starts from its own defaults
        --model.position.base 5e5                      a key of that kind, before or after it
        --train.betas 0.9,0.95   --names '["a,b"]'     a list, plain or in TOML
        --model.position '{kind = "rotary"}'           a whole table in TOML, which replaces what was there
        --model.kv_heads none                          no value

    The order of arguments does not matter; of two values for one key the later holds.
    """
    place = Place("command line", flags=True)
    tree: dict[str, Any] = {}
    arguments = iter(range(len(argv)))
    for index in arguments:
        name, value = _flag(argv[index], place)
        if value is None:
            if index + 1 == len(argv) or argv[index + 1].startswith("--"):
                raise place.error(
                    f"`--{name}` has no value; write `--{name} VALUE` (true or false for a switch), or "
                    f"`--{name}=VALUE` if the value begins with `--`"
                )
            value = Text(argv[next(arguments)])
        _set(tree, name, value, place)
    return read_onto(config, type(config), _settled(tree), place)


def _flag(argument: str, place: Place) -> tuple[str, Any]:
    """The key, and its value where the argument itself holds one."""
    if not argument.startswith("--") or argument == "--":
        raise place.error(f"`{argument}` belongs to no key; write `--key value`, such as `--seed 1`")
    name, equals, text = argument[2:].partition("=")
    if name.startswith("no-"):
        if equals:
            raise place.error(f"`--{name}` takes no value; write `--{name}` or `--{name[3:]} {text or 'true'}`")
        return name[3:], False
    return name, Text(text) if equals else None


def _set(tree: dict[str, Any], name: str, value: Any, place: Place) -> None:
    """Puts a value into the tree: under "", since keys below this one may be given as well."""
    path = name.split(".")
    if not all(path):
        raise place.error(f"`--{name}` is not a key; write names with dots between them, such as `--model.width`")
    for part in path:
        tree = tree.setdefault(part, {})
    tree[""] = value


def _settled(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with every key that has only a value of its own replaced by that value."""
    return {
        name: branch if name == "" else branch[""] if set(branch) == {""} else _settled(branch)
        for name, branch in tree.items()
    }
