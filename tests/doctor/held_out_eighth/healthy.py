"""Twenty healthy but unusual runs: none of them may have a finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import held_out_made as made
from faults import GRU, MASKED, MOE, REVIEWS, TEXT, from_base, molecules, waves
from held_out_cases import ADAMW, DIGITS, PAIRS, Arguments, Case


def _recipe(*arguments: str) -> Arguments:
    return lambda folder: list(arguments)


def _file(make: Callable[[Path], Path], *arguments: str) -> Arguments:
    """The arguments with a file that is made for the run; the last one names its option."""
    *given, option = arguments
    return lambda folder: [*given, f"{option}={make(folder / 'made.txt')}"]


def _own(make: Callable[[Path], Path], *arguments: str) -> Arguments:
    """A language model of a text that is made for the run."""
    return _file(make, *TEXT, "--data.limit=none", *arguments, "--data.path")


def _rare(folder: Path) -> Sequence[str]:
    given = made.reviews(folder / "reviews.csv", share=0.1, length=(5, 10))
    return [*REVIEWS, f"--data.path={given}"]


def _millions(folder: Path) -> Sequence[str]:
    return [*molecules(folder), f"--data.path={made.molecules(folder / 'millions.csv', unit=1e6)}"]


def _walk(folder: Path) -> Sequence[str]:
    return [*waves(folder), f"--data.path={made.walk(folder / 'walk.csv')}"]


LORA = (
    "shakespeare-small",
    "--init=BASE",
    "--train.adapt=lora",
    *ADAMW,
    "--data.limit=150000",
    "--data.validation=0.2",
)
FROZEN = (*LORA, "--train.adapt=layerwise", "--train.adapt.freeze=2", "--train.optimizer.lr=1e-3")
SHORT = ("--train.steps=100", "--train.evaluate_every=50")

HEALTHY = [
    Case("context_of_two", _recipe(*TEXT, "--model.context=2", "--data.batch=256")),
    Case("coin_flips", _own(made.coins)),
    Case("one_sentence_repeated", _own(made.one_sentence)),
    Case("rate_of_5e-5", _recipe(*TEXT, "--train.optimizer=adamw", "--train.optimizer.lr=5e-5", "--train.steps=250")),
    Case(
        "rate_of_3e-2",
        _recipe(*TEXT, "--train.optimizer=adamw", "--train.optimizer.lr=3e-2", "--train.schedule=linear"),
    ),
    Case(
        "carried_state_and_dropout",
        _recipe(*GRU, "--model.carry=true", "--data.order=consecutive", "--model.dropout=0.5"),
    ),
    Case("rows_one_by_one", _recipe(*TEXT, "--data.batch=1", "--train.accumulate=8", "--train.steps=100")),
    Case(
        "no_momentum_and_no_clipping",
        _recipe(
            *(*TEXT, "--train.optimizer=adamw", "--train.optimizer.lr=1e-3", "--train.optimizer.betas=0.0,0.99"),
            *("--train.clip=none", "--train.schedule=constant", "--train.optimizer.weight_decay=0"),
        ),
    ),
    Case("bytes_of_plain_text", _recipe(*TEXT, "--data.tokenizer=bytes", "--model.tied=false")),
    Case("five_steps", _recipe(*TEXT, "--train.steps=5", "--train.evaluate_every=none")),
    Case(
        "adapters_of_another_text",
        from_base("adapters_of_another_text", *LORA, *SHORT),
        before=_recipe(*TEXT),
    ),
    Case(
        "lowest_layers_frozen",
        from_base("lowest_layers_frozen", *FROZEN, *SHORT),
        before=_recipe(*TEXT),
    ),
    Case("two_fifths_masked", _recipe(*MASKED, "--task.share=0.4")),
    Case("values_in_millions", _millions),
    Case("nine_tenths_of_one_class", _rare),
    Case("random_walks", _walk),
    Case("one_expert_of_eight", _recipe(*MOE, "--model.feedforward.active=1", "--model.feedforward.capacity=1.25")),
    Case("translation_is_a_copy", _file(made.same_pairs, *PAIRS, "--data.path")),
    Case("every_image_mixed", _recipe(*DIGITS, "--data.mixup=0.5", "--data.cutmix=0.5", "--data.erase=0.5")),
    Case("resumed_after_its_end", _recipe(*TEXT, "--train.steps=75"), resume=150),
]
