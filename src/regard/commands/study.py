"""`regard study`."""

import sys
from dataclasses import dataclass
from pathlib import Path

from regard.commands.common import CommandOptions, in_columns
from regard.config import argument, option
from regard.errors import UserError


@dataclass(frozen=True)
class StudyOptions(CommandOptions):
    """Options of `regard study`."""

    name: str | None = argument(None, "the study; without it, all are listed")
    scale: float = option(1.0, "length of the trainings: 0.1 trains a tenth as long, for a first impression")
    seed: int = option(1, "random seed of weights and batches")
    out: Path = option(Path("studies"), "the folder for the page and its numbers")


def study(options: StudyOptions) -> int:
    """Measure a claim of the lecture notes: the effect of attention, gates, residual paths and parallel computation."""
    from regard.studies import about, get, names

    if options.name is None:
        listed = {one: about(one) for one in names()}
        options.show(listed, in_columns(listed))
        return 0
    if not 0 < options.scale <= 100:
        raise UserError(f"--scale must be above 0 and at most 100, not {options.scale}")
    function = get(options.name)
    from regard.studies.page import write

    question = about(options.name).partition("?")[0] + "?"
    result = function(options.scale, options.seed, lambda line: print(line, file=sys.stderr, flush=True))
    path = write(options.name, question, result, options.out)
    record = {"name": options.name, "answer": result.answer, "page": str(path), **result.numbers}
    options.show(record, "\n".join([question, *result.answer, f"{path} shows it"]))
    return 0
