"""`regard recipes`."""

from __future__ import annotations

import json as jsonlib
from functools import reduce
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from regard.train import Experiment

#: For a value; a longer one pushes its help to the right.
COLUMNS = 12
RecipeName = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE]", help_behavior_hint="")]


def recipes(name: RecipeName = None, /, *, json: bool = False) -> int:
    """List the recipes, or every key of one.

    Args:
        name: A recipe, to see all its keys and their values.
        json: Print it as JSON.
    """
    from regard.recipes import about, get, names

    if name is None:
        listed = {one: about(one) for one in names()}
        lines = [f"{one:20} {text.splitlines()[0] if text else ''}" for one, text in listed.items()]
        print(jsonlib.dumps(listed) if json else "\n".join(lines))
        return 0
    from regard.config import dump

    experiment = get(name)
    if json:
        print(jsonlib.dumps(dump(experiment)))
        return 0
    rows = listing(experiment)
    longest = max(len(option) for option, _, _ in rows)
    print(about(name), end="\n\n")
    for option, value, help in rows:
        print(f"{option:{longest}}  {value:{COLUMNS}}  {help}")
    return 0


def listing(experiment: Experiment) -> list[tuple[str, str, str]]:
    """Every key that a person can set, as an option, with its value as the option takes it and its help."""
    from regard.config import keys
    from regard.report.config_diff import format_value

    rows = []
    for key in keys(experiment):
        if key.path == "train.budget":  # a note that the run writes
            continue
        value = format_value(key.default)
        if key.path == "model.vocabulary":
            value = "by the data"  # whatever is set here
        choices = f"({', '.join(map(format_value, key.choices))})" if key.choices else ""
        help = key.help or chosen(experiment, key.path)
        rows.append((f"--{key.path}", value if value.isprintable() else repr(value), f"{help} {choices}".strip()))
    return rows


def chosen(experiment: Experiment, path: str) -> str:
    """What the choice at a key is between, as its class says it: the help of a field that has none of its own."""
    from regard.config.shape import Maybe
    from regard.config.table import Part, table_of

    *parents, name = path.split(".")
    shape = table_of(type(reduce(getattr, parents, experiment))).fields[name][1]
    shape = shape.inner if isinstance(shape, Maybe) else shape
    said = (shape.cls.__doc__ or "").splitlines()[0].rstrip(".") if isinstance(shape, Part) else ""
    return said[:1].lower() + said[1:]
