"""Configs side by side: what differs from the defaults, and which options of the command line would make it so."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.config import dump, load
from regard.errors import UserError
from regard.train import Experiment

#: Keys that a run finds out by itself, so that nobody would set them.
FOUND_OUT = ("model.vocabulary", "train.budget")


class Difference(NamedTuple):
    """One key that has another value."""

    key: str
    value: Any
    default: Any  # None: the other config has no such key


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys; the kind of a choice stands under the choice's own name, as on the command line.

    >>> flat({"seed": 1, "model": {"kind": "gpt", "norm": {"kind": "rms"}}})
    {'seed': 1, 'model': 'gpt', 'model.norm': 'rms'}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if "kind" in value:
                found[key] = value["kind"]
            found |= flat({k: v for k, v in value.items() if k != "kind"}, f"{key}.")
        else:
            found[key] = value
    return found


def kinds(config: Mapping[str, Any]) -> dict[str, Any]:
    """Only the choices of a config: loaded, they give its defaults."""
    inner = {name: kinds(value) for name, value in config.items() if isinstance(value, Mapping)}
    return {name: value for name, value in config.items() if name == "kind"} | {k: v for k, v in inner.items() if v}


def whole(config: dict[str, Any]) -> dict[str, Any]:
    """A run's config with every key that this version has; as it is, where it has a part this version does not know."""
    try:
        return dump(load(Experiment, config))
    except (UserError, ValueError, TypeError):
        return config


def differences(config: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """Every key of `config` that `other` has not, or has with another value; and what only `other` sets."""
    mine, theirs = flat(config), flat(other)
    found = [Difference(k, v, theirs.get(k)) for k, v in mine.items() if k not in theirs or theirs[k] != v]
    # What is left out is none: of a kind that both have, it must be said.
    gone = [k for k in theirs if k not in mine and k.rpartition(".")[0] in {*_tables(mine), ""}]
    gone = [k for k in gone if mine.get(k.rpartition(".")[0]) == theirs.get(k.rpartition(".")[0])]
    return found + [Difference(k, "none", theirs[k]) for k in gone]


def command(recipe: str, changes: Mapping[str, Any]) -> str:
    """`regard train RECIPE` with options.

    >>> command("shakespeare", {"model.width": 256})
    'regard train shakespeare --model.width 256'
    """
    options = [f"--{key} {shlex.quote(spelled(value))}" for key, value in changes.items()]
    return " ".join([f"regard train {shlex.quote(recipe)}", *options])


def spelled(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(spelled(item) for item in value)
    return "none" if value is None else str(value)


def _tables(keys: Mapping[str, Any]) -> set[str]:
    return {key.rpartition(".")[0] for key in keys}
