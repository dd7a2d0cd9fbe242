"""Differences between configs, and the command line options that produce them."""

import shlex
from collections.abc import Mapping
from typing import NamedTuple

from regard.config import dump, load
from regard.config.key_path import flag_text
from regard.config.parts import with_options
from regard.config.table import plain
from regard.errors import UserError
from regard.train import Experiment

#: Keys that a run determines by itself.
AUTOMATIC = (
    "model.vocabulary",
    "train.budget",
    "train.plans",
    "train.evaluate_tokens",
    "model.head.labels",
    "task.labels",
)

Config = Mapping[str, object]


class Difference(NamedTuple):
    """One key with another value."""

    key: str
    value: object
    default: object  # None: the other config has no such key


def flatten(config: Config, prefix: str = "") -> dict[str, object]:
    """Dotted keys to values; the kind of a choice is the value of the choice's own name, as on the command line.

    >>> flatten({"seed": 1, "model": {"kind": "gpt", "norm": {"kind": "rms"}}})
    {'seed': 1, 'model': 'gpt', 'model.norm': 'rms'}
    """
    values: dict[str, object] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if "kind" in value:
                values[key] = value["kind"]
            values |= flatten({k: v for k, v in value.items() if k != "kind"}, f"{key}.")
        else:
            values[key] = value
    return values


def kinds(config: Config) -> dict[str, object]:
    """Only the choices of a config: loaded, they give its defaults."""
    inner = {name: kinds(value) for name, value in config.items() if isinstance(value, Mapping)}
    return {name: value for name, value in config.items() if name == "kind"} | {k: v for k, v in inner.items() if v}


def complete(config: Config) -> Config:
    """A run's config with every key of this version; unchanged if it has a part that this version does not know."""
    try:
        return dump(load(Experiment, config))
    except (UserError, ValueError, TypeError):
        return config


def differences(config: Config, other: Config) -> list[Difference]:
    """Every key of ``config`` that ``other`` lacks or has with another value, and every key that only ``other`` has."""
    mine, theirs = flatten(config), flatten(other)
    changed = [Difference(k, v, theirs.get(k)) for k, v in mine.items() if k not in theirs or theirs[k] != v]
    # An omitted key means None, which must be spelled out where both configs have the same kind.
    tables = {_table(key) for key in mine} | {""}
    omitted = [k for k in theirs if k not in mine and _table(k) in tables]
    omitted = [k for k in omitted if mine.get(_table(k)) == theirs.get(_table(k))]
    return changed + [Difference(k, "none", theirs[k]) for k in omitted]


def unusual_settings(config: Config) -> list[Difference]:
    """What differs from the defaults of the chosen parts."""
    try:
        defaults = dump(load(Experiment, kinds(config)))
    except (UserError, ValueError, TypeError):  # a part that this version does not know
        return []
    chosen = differences(defaults, dump(Experiment()))
    parts = [d for d in chosen if isinstance(d.value, str) and d.key in flatten(kinds(config))]
    return parts + [difference for difference in differences(config, defaults) if difference.key not in AUTOMATIC]


def command(recipe: str, changes: Config) -> str:
    """`regard train RECIPE` with options, and with the loaded files of parts.

    >>> command("shakespeare", {"model.width": 256})
    'regard train shakespeare --model.width 256'
    """
    options = [f"--{key} {shlex.quote(format_value(value))}" for key, value in changes.items()]
    return " ".join([f"regard train {shlex.quote(recipe)}", *options]) + with_options()


def format_value(value: object) -> str:
    """A value as the command line takes it."""
    return flag_text(plain(value))


def _table(key: str) -> str:
    return key.rpartition(".")[0]
