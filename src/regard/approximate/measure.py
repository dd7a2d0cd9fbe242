"""The meter: every attention at every budget, first against exact attention layer by layer, then inside the model.

Errors are those of one layer at a time on what the exact model gives it; the loss with all layers exchanged also holds
how errors add up on the way through. Nothing is trained anew: a model trained with a mechanism can do far better than
one that gets it overnight, so these numbers are what an exchange costs, not what a mechanism is worth.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.approximate.budgets import Trial
from regard.approximate.error import HeadError, errors
from regard.approximate.gather import Given, gather
from regard.approximate.stand_in import StandIn, fit, stand_in
from regard.approximate.swap import only, swapped
from regard.attention import Mechanism
from regard.errors import UserError
from regard.models.gpt import GPT
from regard.tasks import Task
from regard.train.precision import Precision
from regard.train.score import score

WINDOWS = 4  # whose queries and keys are compared
FITTING = 8  # other windows, for the parameters that a mechanism brings of its own
LONGEST = 1024  # tokens of them
BATCH = 8  # windows at a time through the model
TURNS = 5  # of timing, exact and approximate one after the other

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """One attention at one budget."""

    trial: Trial
    heads: list[HeadError] = field(default_factory=list)
    refused: str = ""  # why nothing could be measured
    causal: bool = True  # False: compared on the non-causal version of the layers
    why_not: str = ""  # why it cannot stand in the model
    fitted: bool = False  # parameters of its own were fitted
    loss: float | None = None  # with every layer exchanged, nats per token
    margin: float = 0.0  # half the 95 % interval of what the loss is more than the exact one, over windows
    by_block: list[float] = field(default_factory=list)  # with one block exchanged
    pace: float | None = None  # tokens per second, forward
    exact_pace: float | None = None  # of exact attention, measured in turns with it

    @property
    def error(self) -> float:
        """The mean over heads."""
        return statistics.fmean(head.error for head in self.heads)

    @property
    def variation(self) -> float:
        return statistics.fmean(head.variation for head in self.heads)

    @property
    def worst(self) -> HeadError:
        return max(self.heads, key=lambda head: head.error)

    @property
    def speedup(self) -> float:
        """Speed relative to exact attention; 0 if it was not measured."""
        return (self.pace or 0.0) / (self.exact_pace or 1.0)

    def more(self, exact: float) -> float:
        """The increase of the loss over the exact one; 0 if it was not measured."""
        return (exact if self.loss is None else self.loss) - exact


@dataclass(frozen=True)
class Meter:
    """Everything that was measured."""

    loss: float  # of the model as it is
    tokens: int  # that the losses are over
    outcomes: list[Outcome]


@dataclass(frozen=True)
class Text:
    """Windows of tokens."""

    inputs: Tensor  # [W, N]
    targets: Tensor  # [W, N], -1 where nothing is foretold

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def part(self, first: int, count: int) -> Text:
        return Text(self.inputs[first : first + count], self.targets[first : first + count])

    def parted(self, windows: int) -> tuple[Text, Text]:
        """Some windows for fitting and up to ``windows`` others for measuring; half and half where there are few."""
        aside = min(FITTING, max(len(self) // 2, len(self) - windows))
        if len(self) < 2:
            raise UserError("this text is shorter than two windows of the model's context; give a longer one")
        return self.part(0, aside), self.part(aside, windows)

    def batches(self, size: int) -> Iterator[Any]:
        from regard.data.batch import TextBatch

        for inputs, targets in zip(self.inputs.split(size), self.targets.split(size), strict=True):
            yield TextBatch(inputs, targets)


class Bench:
    """A model at rest with its text, ready to be measured again and again."""

    def __init__(
        self, model: GPT, task: Task, text: Text, device: torch.device, windows: int = 32, timed: int | None = None
    ):
        """``timed``: speed is that of one text of so many tokens, not of windows as long as the model's context."""
        self.model, self.task, self.device = model, task, device
        self.precision = Precision("float32", device)  # errors are those of mechanisms, not of rounding
        aside, self.text = text.parted(windows)
        whole = text.inputs.flatten()
        if timed is not None and not 1 <= timed <= len(whole):
            raise UserError(f"speed cannot be measured on {timed:,} tokens: there are 1 to {len(whole):,} of this text")
        self.timed = (self.text.inputs[:BATCH] if timed is None else whole[None, :timed]).to(device)
        self.fitting, self.given = self._gathered(aside), self._gathered(self.text.part(0, WINDOWS))
        if not self.given:
            raise UserError("this model has no exact attention that another could stand in for")

    def _gathered(self, text: Text) -> list[Given]:
        windows = max(1, min(len(text), 2 * LONGEST**2 // text.inputs.shape[1] ** 2))
        return gather(self.model, text.inputs[:windows, :LONGEST].to(self.device))

    def losses(self) -> list[float]:
        """Nats per token of the model as it now is, window by window, so that differences have an interval."""
        windows = self.text.batches(1)
        return [score(self.model, self.task, [one], self.device, self.precision).loss for one in windows]

    def pass_seconds(self) -> float:
        """One forward pass."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        begun = time.perf_counter()
        with torch.no_grad():
            self.model.features(self.timed)  # the head is the same for all
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - begun

    def paces(self, trial: Trial, mechanisms: dict[int, Mechanism]) -> tuple[float, float]:
        """Tokens per second with these mechanisms and without: in turns, so that a busy machine slows both."""
        seconds: tuple[list[float], list[float]] = [], []
        for _ in range(TURNS + 1):
            for found, new in zip(seconds, (True, False), strict=True):
                with swapped(self.model, trial.config, mechanisms) if new else nullcontext():
                    found.append(self.pass_seconds())
        one, two = (
            self.timed.numel() / statistics.median(found[1:]) for found in seconds
        )  # the first of each warms up
        return one, two


def measure(bench: Bench, trials: Sequence[Trial], *, each_layer: bool = False, say: Say = lambda _: None) -> Meter:
    """Try them all; ``each_layer`` also puts each into one block at a time."""
    before = bench.losses()
    outcomes = []
    for number, trial in enumerate(trials, start=1):
        say(f"{number} of {len(trials)}: {trial.kind} {trial.budget}")
        outcomes.append(try_one(bench, trial, before, each_layer))
    return Meter(statistics.fmean(before), int((bench.text.targets >= 0).sum()), outcomes)


def try_one(bench: Bench, trial: Trial, before: Sequence[float], each_layer: bool = False) -> Outcome:
    """One attention at one budget: errors, then loss and speed where it can stand in the model.

    ``before`` are the losses of the model as it is, window by window.
    """
    context = bench.model.config.context
    try:
        made = {one.name: stand_in(trial.config, one, context) for one in reversed(bench.given)}
    except UserError as refusal:
        return Outcome(trial, refused=str(refusal))
    fitted = [fit(made[one.name], one) for one in _once(bench.fitting)]
    heads = [
        head
        for layer, one in enumerate(bench.given, start=1)
        for head in errors(layer, _for(made[one.name], one, trial), one)
    ]
    first = next(iter(made.values()))
    outcome = {"heads": heads, "causal": first.causal, "why_not": first.why_not, "fitted": any(fitted)}
    if not all(one.causal for one in made.values()):
        return Outcome(trial, **outcome)
    mechanisms = {_block(name): one.mechanism for name, one in made.items()}
    try:
        with swapped(bench.model, trial.config, mechanisms):
            losses = bench.losses()
    except UserError as refusal:
        return Outcome(trial, **{**outcome, "why_not": str(refusal)})
    by_block = []
    for block in sorted(mechanisms) if each_layer else []:
        with swapped(bench.model, trial.config, only(mechanisms, [block])):
            by_block.append(statistics.fmean(bench.losses()))
    pace, exact_pace = bench.paces(trial, mechanisms)
    more = [after - one for after, one in zip(losses, before, strict=True)]
    margin = 1.96 * statistics.stdev(more) / len(more) ** 0.5 if len(more) > 1 else 0.0
    found = {"loss": statistics.fmean(losses), "margin": margin, "by_block": by_block}
    return Outcome(trial, **outcome, **found, pace=pace, exact_pace=exact_pace)


def _for(one: StandIn, given: Given, trial: Trial) -> StandIn:
    """The same mechanism planned for this use of it: a repeated block is used several times."""
    return one._replace(plan=one.mechanism.plan(one.mask & trial.config.pattern(), given.plan.queries, like=given.q))


def _once(found: list[Given]) -> list[Given]:
    """The first use of each mechanism."""
    return list({one.name: one for one in reversed(found)}.values())


def _block(name: str) -> int:
    found = re.match(r"blocks\.(\d+)\.", name)
    assert found is not None  # a GPT's attentions are in its blocks
    return int(found[1])
