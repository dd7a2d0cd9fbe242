"""Measure every attention at every budget, first against exact attention layer by layer, then inside the model.

Errors are those of one layer at a time on the inputs of the exact model; the loss with all layers replaced also
contains the accumulation of errors over layers. Nothing is retrained: a model trained with a mechanism can do far
better than one that gets it after training, so these numbers are the cost of a replacement, not a
verdict on a mechanism.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard.approximate.budgets import Trial
from regard.approximate.error import HeadError, errors
from regard.approximate.gather import Given, gather
from regard.approximate.replacement import Replacement, fit, make_replacement
from regard.approximate.swap import swapped
from regard.attention import Mechanism
from regard.data.base import TextBatch
from regard.errors import UserError
from regard.models.gpt import GPT
from regard.tasks import Task
from regard.train.evaluate import score
from regard.train.precision import Precision

WINDOWS = 4  # windows whose queries and keys are compared
FITTING = 8  # other windows, for fitting a mechanism's own parameters
LONGEST = 1024  # tokens of these windows
BATCH = 8  # windows in a timed forward pass
ROUNDS = 5  # of timing, exact and approximate alternately

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """One attention at one budget."""

    trial: Trial
    heads: list[HeadError] = field(default_factory=list)
    refused: str | None = None  # why nothing could be measured
    causal: bool = True  # False: compared on the non-causal version of the layers
    not_in_model: str | None = None  # why it cannot be used in the model
    fitted: bool = False  # its own parameters were fitted
    loss: float | None = None  # with every layer replaced, nats per token
    more_margin: float = 0.0  # half the 95 % interval of the loss increase, over windows
    loss_by_block: list[float] = field(default_factory=list)  # with one block replaced
    tokens_per_second: float | None = None  # of a forward pass
    exact_tokens_per_second: float | None = None  # of exact attention, measured alternately

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
        return (self.tokens_per_second or 0.0) / (self.exact_tokens_per_second or 1.0)

    def more(self, exact: float) -> float:
        """The increase of the loss over the exact one; 0 if it was not measured."""
        return (exact if self.loss is None else self.loss) - exact


@dataclass(frozen=True)
class Meter:
    """All measurements."""

    loss: float  # of the unchanged model
    tokens: int  # in the measured windows
    outcomes: list[Outcome]


@dataclass(frozen=True)
class Windows:
    """Windows of text."""

    inputs: Tensor  # [W, N]
    targets: Tensor  # [W, N], -1 where there is none

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def part(self, first: int, count: int) -> Windows:
        return Windows(self.inputs[first : first + count], self.targets[first : first + count])

    def split(self, windows: int) -> tuple[Windows, Windows]:
        """Windows for fitting and up to ``windows`` others for measuring; half and half if there are few."""
        fitting = min(FITTING, max(len(self) // 2, len(self) - windows))
        if len(self) < 2:
            raise UserError("this text is shorter than two windows of the model's context; give a longer one")
        return self.part(0, fitting), self.part(fitting, windows)

    def batches(self, size: int) -> Iterator[TextBatch]:
        for inputs, targets in zip(self.inputs.split(size), self.targets.split(size), strict=True):
            yield TextBatch(inputs, targets)


class Bench:
    """A trained model and its text, for repeated measurements."""

    def __init__(
        self, model: GPT, task: Task, text: Windows, device: torch.device, windows: int = 32, timed: int | None = None
    ):
        """``timed``: measure the speed on one text of so many tokens instead of windows of the model's context."""
        self.model, self.task, self.device = model, task, device
        self.precision = Precision("float32", device)  # so that rounding does not count as error
        fitting, self.text = text.split(windows)
        whole = text.inputs.flatten()
        if timed is not None and not 1 <= timed <= len(whole):
            raise UserError(f"speed cannot be measured on {timed:,} tokens: this text has {len(whole):,}")
        self.timed = (self.text.inputs[:BATCH] if timed is None else whole[None, :timed]).to(device)
        self.fitting, self.given = self._gathered(fitting), self._gathered(self.text.part(0, WINDOWS))
        if not self.given:
            raise UserError("this model has no attention with observable weights that another could replace")

    def _gathered(self, text: Windows) -> list[Given]:
        windows = max(1, min(len(text), 2 * LONGEST**2 // text.inputs.shape[1] ** 2))
        return gather(self.model, text.inputs[:windows, :LONGEST].to(self.device))

    def losses(self) -> list[float]:
        """Nats per token of the model in its current state, window by window."""
        windows = self.text.batches(1)
        return [score(self.model, self.task, [one], self.precision).loss for one in windows]

    def pass_seconds(self) -> float:
        """The time of one forward pass."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        with torch.no_grad():
            self.model.features(self.timed)  # the head is the same for all
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - began

    def speeds(self, trial: Trial, mechanisms: dict[int, Mechanism]) -> tuple[float, float]:
        """Tokens per second with these mechanisms and without, alternately so that a busy machine slows both."""
        seconds: tuple[list[float], list[float]] = [], []
        for _ in range(ROUNDS + 1):
            for times, new in zip(seconds, (True, False), strict=True):
                with swapped(self.model, trial.config, mechanisms) if new else nullcontext():
                    times.append(self.pass_seconds())
        new, old = (self.timed.numel() / statistics.median(times[1:]) for times in seconds)  # the first is a warm-up
        return new, old


def measure(bench: Bench, trials: Sequence[Trial], *, each_layer: bool = False, say: Say = lambda _: None) -> Meter:
    """Run all trials; ``each_layer`` also replaces one block at a time."""
    before = bench.losses()
    outcomes = []
    for number, trial in enumerate(trials, start=1):
        say(f"{number} of {len(trials)}: {trial.kind} {trial.budget}")
        outcomes.append(run_trial(bench, trial, before, each_layer))
    return Meter(statistics.fmean(before), int((bench.text.targets >= 0).sum()), outcomes)


def run_trial(bench: Bench, trial: Trial, before: Sequence[float], each_layer: bool = False) -> Outcome:
    """One attention at one budget: errors, then loss and speed if it can be used in the model.

    ``before`` are the losses of the unchanged model, window by window.
    """
    context = bench.model.config.context
    try:
        replacements = {one.name: make_replacement(trial.config, one, context) for one in reversed(bench.given)}
    except UserError as refusal:
        return Outcome(trial, refused=str(refusal))
    fitted = [fit(replacements[one.name], one) for one in _once(bench.fitting)]
    heads = [
        head
        for layer, one in enumerate(bench.given, start=1)
        for head in errors(layer, _for(replacements[one.name], one, trial), one)
    ]
    first = next(iter(replacements.values()))
    outcome = Outcome(trial, heads, None, first.causal, first.why_not, any(fitted))
    if not all(one.causal for one in replacements.values()):
        return outcome
    mechanisms = {_block(name): one.mechanism for name, one in replacements.items()}
    try:
        with swapped(bench.model, trial.config, mechanisms):
            losses = bench.losses()
    except UserError as refusal:
        return replace(outcome, not_in_model=str(refusal))
    by_block = []
    for block in sorted(mechanisms) if each_layer else []:
        with swapped(bench.model, trial.config, {block: mechanisms[block]}):
            by_block.append(statistics.fmean(bench.losses()))
    speed, exact_speed = bench.speeds(trial, mechanisms)
    more = [after - one for after, one in zip(losses, before, strict=True)]
    margin = 1.96 * statistics.stdev(more) / len(more) ** 0.5 if len(more) > 1 else 0.0
    return replace(
        outcome,
        loss=statistics.fmean(losses),
        more_margin=margin,
        loss_by_block=by_block,
        tokens_per_second=speed,
        exact_tokens_per_second=exact_speed,
    )


def _for(replacement: Replacement, given: Given, trial: Trial) -> Replacement:
    """The same mechanism planned for this call: a repeated block is called several times."""
    mask = replacement.mask & trial.config.pattern()
    return replacement._replace(plan=replacement.mechanism.plan(mask, given.plan.queries, like=given.q))


def _once(calls: list[Given]) -> list[Given]:
    """The first call of each mechanism."""
    return list({one.name: one for one in reversed(calls)}.values())


def _block(name: str) -> int:
    return int(name.split(".")[1])  # a GPT's attentions are blocks.0.attention.mechanism and so on
