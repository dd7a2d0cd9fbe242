"""`regard recipes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.commands.common import CommandOptions, in_columns
from regard.config import argument

if TYPE_CHECKING:
    from regard.train import Experiment

VALUE_WIDTH = 12  # characters; a longer value moves its help to the right


@dataclass(frozen=True)
class RecipesOptions(CommandOptions):
    """Options of `regard recipes`."""

    name: str | None = argument(None, "a recipe, to list all its keys and their values")


def recipes(options: RecipesOptions) -> int:
    """List the recipes, or every key of one."""
    from regard.recipes import about, get, names, place

    if options.name is None:
        listed = {name: about(name) for name in names()}
        lines = {name: "".join(text.splitlines()[:1]) + place(name) for name, text in listed.items()}
        options.show(listed, in_columns(lines))
        return 0
    from regard.config import dump

    experiment = get(options.name)
    rows = listing(experiment)
    longest = max(len(flag) for flag, _, _ in rows)
    lines = [f"{flag:{longest}}  {value:{VALUE_WIDTH}}  {help}" for flag, value, help in rows]
    options.show(dump(experiment), "\n".join([about(options.name), "", *lines]))
    return 0


def listing(experiment: Experiment) -> list[tuple[str, str, str]]:
    """Every key that a user can set: the option, its value as the option takes it, and its help."""
    from regard.config import keys
    from regard.config.parts import listing as parts_by_file
    from regard.report.config_diff import format_value

    places = {part.rpartition(" ")[2]: file for file, parts in parts_by_file().items() for part in parts}
    rows = []
    for key in keys(experiment):
        if key.path in ("train.budget", "train.plans"):  # written by the run
            continue
        value = "by the data" if key.path == "model.vocabulary" else format_value(key.default)
        names = [format_value(name) + (f" ({places[name]})" if name in places else "") for name in key.choices]
        choices = f"({', '.join(names)})" if names else ""
        rows.append((f"--{key.path}", value if value.isprintable() else repr(value), f"{key.help} {choices}".strip()))
    return rows
