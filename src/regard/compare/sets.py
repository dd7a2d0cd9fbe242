"""Named comparisons: contenders, a budget and options that belong together."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class ComparisonSet(NamedTuple):
    """A comparison that has a name. Options on the command line replace its own."""

    about: str
    contenders: tuple[str, ...]
    budget: tuple[str, ...]
    keys: Mapping[str, object] = MappingProxyType({})  # of every contender's experiment
    seeds: int = 3
    rates: int = 3
    share: float = 0.25


_PLAIN = "--model.ngrams 1 --model.cap none"  # no tables of n-grams and no cap, which the other architectures lack
_GPT = f"shakespeare {_PLAIN}"
_MIXER = f"shakespeare-ssm {_PLAIN}"

SETS = {
    "transformer-lstm": ComparisonSet(
        "a Transformer against an LSTM: 100,000 parameters, ten seconds each",
        (f"Transformer: shakespeare-small {_PLAIN}", "LSTM: shakespeare-lstm"),
        ("params=100k", "seconds=10"),
        {"train.optimizer": "adamw", "train.optimizer.lr": 3e-3},
        seeds=2,
    ),
    "long-sequences": ComparisonSet(
        "nine architectures on texts of 512 characters, at equal parameters, and at equal tokens and equal time",
        (
            f"Transformer: {_GPT}",
            f"window: {_GPT} --model.attention window --model.attention.size 64",
            f"linear: {_GPT} --model.attention linear",
            f"Performer: {_GPT} --model.attention performer",
            f"S4D: {_MIXER}",
            "convolution: shakespeare-conv --model.layers 9 --model.cycle 9",
            "RNN: shakespeare-rnn",
            "LSTM: shakespeare-lstm",
            "GRU: shakespeare-gru",
        ),
        ("params=450k", "tokens=800k", "seconds=60"),
        {
            "model.context": 512,
            "data.batch": 4,
            "train.optimizer": "adamw",
            "train.optimizer.lr": 3e-3,
        },
        rates=4,
        share=0.2,
    ),
}
DEFAULT = "transformer-lstm"
