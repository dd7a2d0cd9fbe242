"""What contenders have in common: the number of parameters, and the length of training."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from regard.errors import UserError
from regard.train import TrainConfig

Measure = Literal["seconds", "flops", "tokens", "epochs", "steps"]
#: A recipe's own length is the first one that it has.
MEASURES: tuple[Measure, ...] = ("seconds", "flops", "tokens", "epochs", "steps")
SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}
EXAMPLE = "seconds=120, flops=1e14, tokens=5M, steps=500 or params=1M"
LEAST = 25  # steps: a whole number of them is then at most 2 % off


class Length(NamedTuple):
    """A length of training."""

    measure: Measure
    amount: float

    def __str__(self) -> str:
        amount = f"{self.amount:,g}" if self.amount < 1e6 else f"{self.amount:.4g}"
        return f"{amount} {'FLOPs' if self.measure == 'flops' else self.measure}"


class StepCost(NamedTuple):
    """What one training step takes."""

    tokens: float  # targets
    flops: float
    seconds: float


class Budget(NamedTuple):
    """A number of parameters (None: that of each recipe), and the lengths of training that are compared in turn."""

    params: float | None
    lengths: tuple[Length, ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Budget:
        """The budget in texts such as "seconds=120" or "params=1M,tokens=5M".

        >>> Budget.parse(["params=1.5M", "seconds=90"])
        Budget(params=1500000.0, lengths=(Length(measure='seconds', amount=90.0),))
        """
        params: float | None = None
        lengths: dict[Measure, float] = {}
        named: dict[str, Measure] = {one: one for one in MEASURES}
        for part in (part for text in texts for part in text.replace(" ", "").split(",") if part):
            name, _, value = part.partition("=")
            measure = named.get(name)
            if measure is None and name != "params":
                raise UserError(f"--budget: {part!r} is none of {EXAMPLE}")
            if params is not None if measure is None else measure in lengths:
                raise UserError(f"--budget: {name} is given twice; leave one out, or compare in two commands")
            if measure is None:
                params = parse_number(part, value)
            else:
                lengths[measure] = parse_number(part, value)
        return cls(params, tuple(Length(*one) for one in lengths.items()))

    def or_of(self, train: TrainConfig) -> Budget:
        """This budget; where it fixes no length of training, with that of a recipe."""
        amounts: list[tuple[Measure, float | None]] = [(one, getattr(train, one, None)) for one in MEASURES]
        own = next(Length(measure, float(amount)) for measure, amount in amounts if amount is not None)
        return self if self.lengths else self._replace(lengths=(own,))


def steps_of(length: Length, cost: StepCost, epoch: float, name: str, least: int = LEAST) -> int:
    """The number of steps of a contender. ``epoch``: steps that read the training part once."""
    each = {"seconds": cost.seconds, "flops": cost.flops, "tokens": cost.tokens, "steps": 1.0, "epochs": 1 / epoch}
    steps = length.amount / each[length.measure]
    if not least <= steps < math.inf:
        raise UserError(
            f"{length} are {steps:.3g} steps of {name}, too few to compare; give at least {least}, so "
            f"--budget {length.measure}={least * each[length.measure]:.3g} or more, or a smaller --data.batch"
        )
    return round(steps)


def parse_number(part: str, text: str) -> float:
    """A number above zero, which may end with k, M, G, B, T or P."""
    factor = SUFFIXES.get(text[-1:], 1.0)
    try:
        number = float(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise UserError(f"--budget: {part!r} has no number above zero; write for example {EXAMPLE}")
    return number
