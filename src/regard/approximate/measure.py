"""Measure every attention at every budget, first against the model's own layer by layer, then inside the model.

Errors are those of one layer at a time on the inputs of the unchanged model; the loss with all layers replaced also
contains the accumulation of errors over layers. Nothing is retrained: a model trained with a mechanism can do far
better than one that gets it after training, so these numbers are the cost of a replacement, not a
verdict on a mechanism.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard.approximate.budgets import Candidate
from regard.approximate.replacement import (
    AttentionInputs,
    HeadError,
    attention_inputs,
    errors,
    fit,
    make_replacement,
    replaced,
)
from regard.attention import Mechanism
from regard.data.base import TextBatch
from regard.errors import UserError
from regard.models.gpt import GPT
from regard.tasks import Task
from regard.train.device import synchronize
from regard.train.evaluate import score
from regard.train.precision import Precision

WINDOWS = 4  # windows whose queries and keys are compared
FITTING = 8  # other windows, for fitting a mechanism's own parameters
LONGEST = 1024  # tokens of these windows
BATCH = 8  # windows in a timed forward pass
ROUNDS = 5  # of timing, with and without the replacement alternately


@dataclass(frozen=True)
class Measurement:
    """One attention at one budget."""

    trial: Candidate
    heads: list[HeadError] = field(default_factory=list)
    refused: str | None = None  # why nothing could be measured
    causal: bool = True  # False: compared on the non-causal version of the layers
    not_in_model: str | None = None  # why it cannot be used in the model
    fitted: bool = False  # its own parameters were fitted
    loss: float | None = None  # with every layer replaced, nats per token
    more_margin: float = 0.0  # half the 95 % interval of the loss increase, over windows
    loss_by_block: list[float] = field(default_factory=list)  # with one block replaced
    tokens_per_second: float | None = None  # of a forward pass
    exact_tokens_per_second: float | None = None  # of the model's own attention, measured alternately

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
        """Speed relative to the model's own attention; 0 if it was not measured."""
        return (self.tokens_per_second or 0.0) / (self.exact_tokens_per_second or 1.0)

    def more(self, before: float) -> float:
        """The increase over the loss of the unchanged model; 0 if it was not measured."""
        return 0.0 if self.loss is None else self.loss - before


@dataclass(frozen=True)
class Sweep:
    """All measurements."""

    loss: float  # of the unchanged model
    tokens: int  # in the measured windows
    outcomes: list[Measurement]


class Bench:
    """A trained model and its text, for repeated measurements."""

    def __init__(
        self, model: GPT, task: Task, text: TextBatch, device: torch.device, windows: int = 32, timed: int | None = None
    ):
        """``text``: windows for fitting, then up to ``windows`` others for measuring; half and half if there are few.

        ``timed``: measure the speed on one text of so many tokens instead of windows of the model's context.
        """
        self.model, self.task, self.device = model, task, device
        self.precision = Precision("float32", device)  # so that rounding does not count as error
        count, whole = len(text.inputs), text.inputs.flatten()
        if count < 2:
            raise UserError("this text is shorter than two windows of the model's context; give a longer one")
        if timed is not None and not 1 <= timed <= len(whole):
            raise UserError(f"speed cannot be measured on {timed:,} tokens: this text has {len(whole):,}")
        fitting = min(FITTING, max(count // 2, count - windows))
        measured = slice(fitting, fitting + windows)
        self.text = TextBatch(text.inputs[measured], text.targets[measured])
        self.timed = (self.text.inputs[:BATCH] if timed is None else whole[None, :timed]).to(device)
        self.fitting = self._attention_inputs(text.inputs[:fitting])
        self.given = self._attention_inputs(self.text.inputs[:WINDOWS])
        if not self.given:
            raise UserError("this model has no attention with observable weights that another could replace")

    def _attention_inputs(self, tokens: Tensor) -> list[AttentionInputs]:
        windows = max(1, 2 * LONGEST**2 // tokens.shape[1] ** 2)
        return attention_inputs(self.model, tokens[:windows, :LONGEST].to(self.device))

    def losses(self) -> list[float]:
        """Nats per token of the model in its current state, window by window."""
        windows = zip(self.text.inputs.split(1), self.text.targets.split(1), strict=True)
        batches = [TextBatch(*window) for window in windows]
        return [score(self.model, self.task, [one], self.precision).loss for one in batches]

    def pass_seconds(self) -> float:
        """The time of one forward pass."""
        synchronize(self.device)
        began = time.perf_counter()
        with torch.no_grad():
            self.model.features(self.timed)  # the head is the same for all
        synchronize(self.device)
        return time.perf_counter() - began

    def speeds(self, trial: Candidate, mechanisms: dict[int, Mechanism]) -> tuple[float, float]:
        """Tokens per second with these mechanisms and without, alternately so that a busy machine slows both."""
        seconds: tuple[list[float], list[float]] = [], []
        for _ in range(ROUNDS + 1):
            for times, new in zip(seconds, (True, False), strict=True):
                with replaced(self.model, trial.config, mechanisms) if new else nullcontext():
                    times.append(self.pass_seconds())
        new, old = (self.timed.numel() / statistics.median(times[1:]) for times in seconds)  # the first is a warm-up
        return new, old


def measure(
    bench: Bench, trials: Sequence[Candidate], *, each_layer: bool = False, say: Callable[[str], object] = str
) -> Sweep:
    """Run all trials; ``each_layer`` also replaces one block at a time."""
    before = bench.losses()
    outcomes = []
    for number, trial in enumerate(trials, start=1):
        say(f"{number} of {len(trials)}: {trial.kind} {trial.budget}")
        outcomes.append(run_trial(bench, trial, before, each_layer))
    return Sweep(statistics.fmean(before), int((bench.text.targets >= 0).sum()), outcomes)


def run_trial(bench: Bench, trial: Candidate, before: Sequence[float], each_layer: bool = False) -> Measurement:
    """One attention at one budget: errors, then loss and speed if it can be used in the model.

    ``before`` are the losses of the unchanged model, window by window.
    """
    context = bench.model.config.context
    try:
        replacements = {one.name: make_replacement(trial.config, one, context) for one in reversed(bench.given)}
    except UserError as refusal:
        return Measurement(trial, refused=str(refusal))
    # A repeated block is called several times: its mechanism is fitted at the first, and planned for each.
    first_calls = {one.name: one for one in reversed(bench.fitting)}
    fitted = [fit(replacements[name], one) for name, one in first_calls.items()]
    heads = []
    for layer, one in enumerate(bench.given, start=1):
        mechanism, mask = replacements[one.name].mechanism, replacements[one.name].mask
        plan = mechanism.plan(mask & trial.config.pattern(), one.plan.queries, like=one.q)
        heads += errors(layer, replacements[one.name]._replace(plan=plan), one)
    refusals = [one.refusal for one in replacements.values() if one.refusal is not None]
    outcome = Measurement(trial, heads, None, not refusals, refusals[0] if refusals else None, any(fitted))
    if refusals:
        return outcome
    # A GPT's attentions are blocks.0.attention.mechanism and so on.
    mechanisms = {int(name.split(".")[1]): one.mechanism for name, one in replacements.items()}
    try:
        with replaced(bench.model, trial.config, mechanisms):
            losses = bench.losses()
    except UserError as refusal:
        return replace(outcome, not_in_model=str(refusal))
    by_block = []
    for block in sorted(mechanisms) if each_layer else []:
        with replaced(bench.model, trial.config, {block: mechanisms[block]}):
            by_block.append(statistics.fmean(bench.losses()))
    speed, own_speed = bench.speeds(trial, mechanisms)
    more = [after - one for after, one in zip(losses, before, strict=True)]
    margin = 1.96 * statistics.stdev(more) / len(more) ** 0.5 if len(more) > 1 else 0.0
    return replace(
        outcome,
        loss=statistics.fmean(losses),
        more_margin=margin,
        loss_by_block=by_block,
        tokens_per_second=speed,
        exact_tokens_per_second=own_speed,
    )
