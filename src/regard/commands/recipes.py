"""`regard recipes`."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import tyro

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
    from regard.config import dump, keys

    experiment = get(name)
    if json:
        print(jsonlib.dumps(dump(experiment)))
        return 0
    print(about(name), end="\n\n")
    for key in keys(experiment):
        choices = f" ({', '.join(key.choices)})" if key.choices else ""
        value = "none" if key.default is None else str(key.default)
        shown = value if value.isprintable() else repr(value)
        print(f"--{key.path:32} {shown:12} {key.help}{choices}")
    return 0
