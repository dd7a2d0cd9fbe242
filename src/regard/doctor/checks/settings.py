"""Settings of the config far outside the range that is used in practice, whatever the run does with them."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from regard.doctor import Check, Findings, History
from regard.pages.numbers import short
from regard.tasks import MaskedTokensConfig


class UsualRange(NamedTuple):
    """Values of a setting that trainings have; ``keys`` are the names that it has in an experiment."""

    keys: tuple[str, ...]
    least: float
    most: float
    cause: str  # what a value beyond them does
    usual: str


#: Wide enough for every recipe and paper that we know: dropout 0.5, no clipping, weight decay 1, caps of 15 to 50 are
#: inside. Published epsilons end at 1e-3, decay rates of the first moment at 0.98, label smoothing at 0.2.
RANGES = (
    UsualRange(
        ("train.optimizer.eps", "train.optimizer.rest_eps"),
        0.0,
        0.01,
        "epsilon exceeds the gradients that Adam divides by, so updates are far smaller than the rate says",
        "1e-8",
    ),
    UsualRange(
        ("train.optimizer.momentum",),
        0.0,
        0.99,
        "updates follow the gradients of hundreds of earlier steps and overshoot",
        "0.9",
    ),
    UsualRange(
        ("train.optimizer.weight_decay", "train.optimizer.rest_weight_decay"),
        0.0,
        20.0,
        "weights shrink faster than they learn",
        "0.1",
    ),
    UsualRange(("train.clip",), 1e-4, math.inf, "every gradient is cut to almost nothing", "1.0"),
    UsualRange(
        (
            *("model.dropout", "model.attention_dropout", "model.feedforward.dropout"),
            *("train.dropout", "train.adapt.dropout"),
        ),
        0.0,
        0.7,
        "most of what layers compute is zeroed in training; it may be the share to keep, given as the one to drop",
        "0.1",
    ),
    UsualRange(
        ("model.cap", "model.attention.cap"),
        5.0,
        math.inf,
        "logits or scores cannot leave ± this cap, so no probability gets near 1 and the loss has a high floor",
        "none",
    ),
    UsualRange(
        ("task.smoothing",),
        0.0,
        0.3,
        "most of each target is spread over all classes, which hides the right one",
        "0.1",
    ),
)
#: Of masked tokens; the share of a task of another kind means something else.
MASKED = UsualRange(
    ("task.share",), 0.02, 0.8, "too few tokens are predicted, or too few are left to predict from", "0.15"
)
BETAS = ("train.optimizer.betas", "train.optimizer.rest_betas")
FIRST = 0.98  # the largest decay rate of the first moment that papers have


class UnusualSetting(Check):
    kind, description = "unusual_setting", "a setting is far outside its usual range"

    def on_start(self) -> Findings:
        given = dict(flat(self.run.settings))
        masked = isinstance(self.run.experiment.task, MaskedTokensConfig)
        for keys, least, most, cause, usual in (*RANGES, MASKED) if masked else RANGES:
            for key in keys:
                value = given.get(key)
                if isinstance(value, int | float) and not least <= value <= most:
                    limit = f"at most {short(most)}" if value > most else f"at least {short(least)}"
                    yield self.finding(key, f"it is {short(value)}; {limit} is usual", cause, f"--{key} {usual}")
        for key in BETAS:
            value = given.get(key)
            if isinstance(value, list | tuple) and len(value) == 2 and (value[0] > value[1] or value[0] > FIRST):
                evidence = (
                    f"they are {value[0]:g}, {value[1]:g}; the first is usually at most {FIRST} and below the second"
                )
                cause = "the first moment averages too many steps, so updates follow old gradients and overshoot"
                if value[0] > value[1]:
                    cause += "; the two are probably swapped"
                yield self.finding(key, evidence, cause, f"the usual --{key} 0.9,0.95")

    def on_history(self, history: History) -> Findings:
        return self.on_start()


def flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values of nested tables by their dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
