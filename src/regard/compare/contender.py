"""Contenders: experiments that differ in their models, and in what a contender's own options change in its training."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from regard.config import dump, override, parse
from regard.data import Batch, Data
from regard.errors import UserError
from regard.models import ModelConfig, describe
from regard.plan.size import CLOSE, with_parameters
from regard.train import Experiment

#: What every contender has in common, so that losses are of the same targets.
SHARED = ("data", "task", "seed", "init", "quantization")


class ContenderText(NamedTuple):
    """A contender as it is written: ``[NAME: ]RECIPE [--key value ...]``."""

    name: str
    recipe: str
    keys: Mapping[str, object]

    @classmethod
    def parse(cls, text: str) -> ContenderText:
        """A recipe or a TOML file with options for it alone, and a name for the tables.

        >>> ContenderText.parse("performer: shakespeare --model.attention performer").recipe
        'shakespeare'
        """
        before, colon, after = text.partition(": ")
        name, rest = (before.strip(), after) if colon else ("", text)
        try:
            words, _, keys = parse(shlex.split(rest))
        except ValueError as problem:
            raise UserError(f"the contender {text!r} cannot be read ({problem})") from None
        if len(words) != 1:
            example = '"performer: shakespeare --model.attention performer"'
            raise UserError(f"a contender is [NAME: ]RECIPE [--key value ...], such as {example}, not {text!r}")
        for key in keys:
            if key.partition(".")[0] in SHARED or key == "model.context":
                raise UserError(
                    f"the contender {text!r} alone has --{key}, so that its loss would be of other targets; "
                    f"give --{key} once, after the contenders"
                )
        return cls(name or rest.strip(), words[0], keys)


class Contender(NamedTuple):
    """An experiment with a name for tables and charts."""

    name: str
    experiment: Experiment


def made_alike(contenders: Sequence[Contender], own: Sequence[Mapping[str, object]]) -> list[Contender]:
    """The contenders with the data, the task and the training of the first one.

    ``own``: the options of each contender; those of training are applied to the first one's training.
    """
    if len(contenders) < 2:
        raise UserError(
            "a comparison has two contenders at least, such as: regard compare shakespeare shakespeare-lstm"
        )
    repeated = [name for name, number in Counter(one.name for one in contenders).items() if number > 1]
    if repeated:
        raise UserError(f'two contenders are called {repeated[0]!r}; name them, as in "one: {repeated[0]}"')
    first = contenders[0].experiment
    found = []
    for contender, keys in zip(contenders, own, strict=True):
        check_same_targets(contenders[0], contender)
        model = in_context(contender.experiment.model, first.model.context)
        train = {key: value for key, value in keys.items() if key.startswith("train.")}
        found.append(Contender(contender.name, override(replace(first, model=model), train).checked()))
    return found


def in_context(model: ModelConfig, context: int) -> ModelConfig:
    """The model for windows of another length, where that is a choice."""
    return replace(model, context=context) if "context" in model.__dataclass_fields__ else model


def plain_text(value: object) -> str:
    """A value of a config, or the kind of a choice."""
    return str(value["kind"] if isinstance(value, dict) and "kind" in value else value)


def check_same_targets(first: Contender, other: Contender) -> None:
    """Refuse a contender whose recipe has another task, other data or another tokenizer, or trained weights."""
    one, two = first.experiment, other.experiment
    for part, a, b in (("task is", one.task.kind, two.task.kind), ("data are", one.data.kind, two.data.kind)):
        if a != b:
            raise UserError(
                f"{first.name} and {other.name} cannot be compared, as their losses are of other targets: the {part} "
                f"{a} in one and {b} in the other"
            )
    ours, theirs = ({**dump(data), "batch": None} for data in (one.data, two.data))
    for key in sorted({*ours, *theirs}):
        if ours.get(key) != theirs.get(key):
            raise UserError(
                f"{first.name} and {other.name} cannot be compared, as their losses are of other targets: data.{key} "
                f"is {plain_text(ours.get(key))} in one and {plain_text(theirs.get(key))} in the other; "
                f"give --data.{key} once, after the contenders"
            )
    if two.init is not None:
        raise UserError(f"{other.name} starts from trained weights (init); contenders start from random ones")


def sized(contender: Contender, data: Data[Batch], parameters: float | None) -> Contender:
    """The contender with the vocabulary of the data and, if ``parameters`` are given, about so many of them."""
    model = contender.experiment.model_for(data)
    if parameters is not None:
        try:
            model = with_parameters(model, parameters)
        except UserError as problem:
            raise UserError(f"{contender.name}: {problem}") from None
        found = describe(model)["parameters"]
        if abs(found / parameters - 1) > CLOSE:
            raise UserError(
                f"{contender.name} has no size with {parameters:,.0f} parameters; the nearest has {found:,} "
                f"({found / parameters - 1:+.1%}): leave it out, or give another --budget params"
            )
    return contender._replace(experiment=replace(contender.experiment, model=model).checked())
