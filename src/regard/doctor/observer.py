"""The doctor at the bedside: an observer that looks rarely, tells at once, and never touches what it looks at.

Numbers that a step has anyway are judged after every step. Everything else is a look: gradients as they lie there, and
side passes in evaluation mode, without gradients and with generators of their own, so that the run stays the same to
the bit. How often depends on what the last look cost.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TextIO

import torch
from torch import nn

from regard.attention import Refused
from regard.doctor import batches, gradients, limits, room
from regard.doctor.checkup import Checkup
from regard.doctor.curves import Curves
from regard.doctor.finding import Finding
from regard.errors import UserError
from regard.look import evaluation_mode
from regard.runs.findings import cut, note, noted
from regard.train import Diverged, Observer, TrainingResult, TrainingStart, TrainingStep
from regard.train.device import memory, move
from regard.train.memory import capacity
from regard.train.shard import from_environment, is_sharded

#: What one look may see by accident, and only two looks in a row count.
DOUBTED = {
    "exploding_gradients",
    "vanishing_gradients",
    "attention_collapse",
    "uniform_heads",
    "dead_units",
    "unused_expert",
    "overloaded_expert",
    "position_fault",
    "starvation",
}


class Doctor(Observer):
    """Watches a training. ``limit`` is how many bytes it may have, where that is less than the device has."""

    def __init__(self, limit: int | None = None, out: TextIO | None = None):
        self.findings: dict[tuple[str, str], Finding] = {}
        self.cost = 0.0  # seconds spent
        self.looks = 0
        self._limit, self._out = limit, out
        self._suspected: set[tuple[str, str]] = set()
        self._curves: Curves | None = None
        self._healthy = True  # the doctor itself

    def started(self, start: TrainingStart) -> None:
        """Take in what there is to look at."""
        self._start, train = start, start.experiment.train
        self._curves = Curves(train, getattr(start.experiment.model, "vocabulary", None))
        self._step, self._position = start.step, start.step * train.accumulate
        self._times: deque[float] = deque(maxlen=20)
        self._recent: deque[tuple[float, range]] = deque(maxlen=60)  # with the numbers of its batches
        self._seconds: float | None = None
        self._began, self._latest = None, 0.0
        whole = not any(is_sharded(parameter) for parameter in start.model.parameters())
        self._parts = gradients.groups(start.model) if whole else {}
        self._moves = gradients.Moves(self._parts)
        self._task = start.experiment.task.build()
        self._checkup = Checkup(start.experiment, start.model, start.data, self._batch, self._terms)
        self._whole = whole  # a model in shards runs on all ranks or on none, and this is told on the first only
        self._before = memory(start.device)
        self._limit = self._limit or capacity(start.device)
        steps = train.steps or 0
        left = steps - start.step
        self._due = {start.step + max(1, -(-left * third // 3)) for third in (1, 2, 3)}
        self._early = start.step + max(2, left // 10)
        if start.step:
            cut(start.run, start.step)
            for record in start.run.metrics():
                self._curves.read(record)
        for record in noted(start.run):  # what an earlier sitting found is not told again
            if (finding := Finding.read(record)) is not None:
                self.findings[finding.place] = finding

    def stepped(self, step: TrainingStep) -> None:
        """Judge the step's own numbers, and look if it is time."""
        began = time.perf_counter()
        curves = self._curves
        assert curves is not None
        first, self._position = self._position, step.position
        if self._seconds is not None:
            self._times.append(step.seconds - self._seconds - self._latest)
            self._recent.append((self._times[-1], range(first, step.position)))
        self._seconds, self._step = step.seconds, step.step
        self._began = step.seconds if self._began is None else self._began
        curves.add(step.step, step.loss, step.rate, step.norm)
        if self._healthy:
            try:
                self._after(step, curves, first)
            except Refused:  # training will say it
                self._healthy = False
            except Exception as problem:  # a model that cannot be looked into can still be trained
                self._healthy = False
                said = f"the doctor gave up ({type(problem).__name__}: {problem}); training goes on without"
                print(said, file=self._out or sys.stderr)
        self._latest = time.perf_counter() - began
        self.cost += self._latest

    def _after(self, step: TrainingStep, curves: Curves, first: int) -> None:
        if (moved := self._moves.compare()) is not None:
            curves.moves.append(moved.ratio)
            self._tell(gradients.left_out(moved.still))
        if (rise := curves.jumped()) is not None:
            self._tell(self._spike(step, rise, range(first, step.position)))
        if self._now(step):
            self._tell(self._look(step, curves), look=True)
            self.looks += 1
        if step.step == self._early or step.step in self._due:
            self._moves.copy()

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        """The validation loss beside the other."""
        if self._curves is not None and self._healthy:
            self._curves.validation.append((step, measures["validation_loss"]))
            self._tell(self._curves.by_heart())

    def finished(self, result: TrainingResult) -> None:
        """Write down the findings as they are now."""
        for finding in self.findings.values():
            if finding.step > finding.since:
                note(self._start.run, finding.record())
        count, name = len(self.findings), self._start.run.path
        told = f"{count} found, regard doctor {name} tells them" if count else "nothing found that is wrong"
        print(f"doctor: {told} ({self.looks} looks, {self.cost:.1f} s)", file=self._out or sys.stderr, flush=True)

    def failed(self, error: BaseException) -> None:
        """What the end was about, if it can be known."""
        if self._curves is None or isinstance(error, KeyboardInterrupt):
            return
        self._step += 1
        try:
            self._tell(self._last_words(error))
        except Exception as problem:  # the error that ended it matters, and not this one
            print(f"the doctor gave up ({type(problem).__name__}: {problem})", file=self._out or sys.stderr)

    def _last_words(self, error: BaseException) -> Iterator[Finding]:
        if isinstance(error, Diverged):
            yield self._diverged(error)
        elif isinstance(error, UserError) and str(error).startswith("memory ran out"):
            said, _, fix = str(error).partition("; ")
            cause = "what a batch leaves for the backward pass does not fit"
            yield Finding("memory", "data.batch", said, cause, fix.removeprefix("use "))
        elif isinstance(error, (IndexError, RuntimeError)):
            for number in range(self._position, self._position + self._start.experiment.train.accumulate):
                yield from batches.out_of_range(number, self._batch(number), self._checkup.vocabulary)

    def _now(self, step: TrainingStep) -> bool:
        """Whether to look: at three moments in any case, else while looks cost a small share of the time."""
        if step.step in self._due:
            return True
        each = self.cost / self.looks if self.looks else 5 * statistics.median(self._times or [1e9])
        spent = step.seconds - (self._began or 0.0)
        return step.step % 10 == 0 and self.cost + each < limits.SHARE * spent

    def _look(self, step: TrainingStep, curves: Curves) -> Iterator[Finding]:
        start = self._start
        yield from curves.findings()
        if self._parts:
            found = gradients.norms(self._parts, step.norm, start.model)
            yield from gradients.judge(found, curves.norm(), start.experiment.train.clip)
            yield from gradients.silent(self._parts, start.model)
        yield from room.judge(memory(start.device), self._before, self._limit, start.experiment)
        each = statistics.median(self._times) if self._times else 0.0
        fetched, wrong = self._checkup.batches(self._position - 1, each)
        yield from wrong
        if self._times:
            slow = list(batches.starving(fetched.seconds, each, start.experiment.train.accumulate))
            yield from slow or batches.stalling(self._recent, self._batch)
        if self._whole:
            yield from self._checkup.model_on(fetched.newest, start.device)
        yield from self._checkup.text(limits.SHARE / 3 * (step.seconds - (self._began or 0.0)))

    def _spike(self, step: TrainingStep, rise: float, numbers: Iterable[int]) -> Iterator[Finding]:
        """The batch that the loss jumped on: each is asked again alone."""
        numbers = list(numbers)
        if not self._whole or not numbers:
            return
        losses = {number: self._loss(number) for number in [*numbers, max(numbers[0] - 1, 0)]}
        worst = max(numbers, key=lambda number: losses[number])
        usual = min(losses.values()) if len(losses) > 1 else 0.0
        evidence = f"the loss is {step.loss:.3f}, {rise:.2f} above all of the last {limits.SPIKE_WINDOW}"
        if losses[worst] - usual > rise / 2:
            cause = f"this batch alone has a loss of {losses[worst]:.3f}: its text or its targets are unlike all others"
            change = "look at that batch; --train.clip 0.5 lessens the harm"
        else:
            cause = "the batch is like others, so the weights have moved too far: the rate is at the edge"
            change = f"--train.optimizer.lr {step.rate / 3:.2g}"
        yield Finding("loss_spike", f"batch {worst}", evidence, cause, change)

    def _loss(self, number: int) -> float:
        batch = move(self._batch(number), self._start.device)
        if list(batches.out_of_range(number, batch, self._checkup.vocabulary)):
            return float("inf")
        with evaluation_mode(self._start.model):
            term = next(iter(self._terms(self._start.model, batch).values()))
        return float(term.total) / max(float(term.count), 1.0)

    def _diverged(self, error: Diverged) -> Finding:
        module = error.module
        if module is None:
            named = self._start.model.named_parameters()
            bad = (name for name, p in named if p.grad is not None and not bool(torch.isfinite(p.grad).all()))
            module = f"the gradient of {next(bad, 'the loss')}"
        weights = [
            name
            for name, p in self._start.model.named_parameters()
            if name.startswith(f"{module}.") and not bool(torch.isfinite(p).all())
        ]
        cause = "its result is beyond the number format: weights or inputs too large for what it computes"
        assert self._curves is not None
        rate = self._curves.rates[-1] if self._curves.rates else self._start.experiment.train.optimizer.lr  # type: ignore[attr-defined]
        change = f"--train.optimizer.lr {rate / 10:.2g}, --train.clip 1.0, or --train.precision float32"
        if weights:
            cause, change = f"{weights[0]} itself holds numbers that are not finite", "start from sound weights"
        evidence = f"the first output that is not finite, at step {error.step}"
        return Finding("non_finite", f"{module}, batch {error.position}", evidence, cause, change)

    def _tell(self, found: Iterable[Finding], look: bool = False) -> None:
        """Note what is new, bring up to date what is known; what may be an accident waits for the next look."""
        suspected = set()
        for finding in found:
            known = self.findings.get(finding.place)
            finding = replace(finding, step=self._step, since=known.since if known else self._step)
            if known is None and finding.kind in DOUBTED and finding.place not in self._suspected:
                suspected.add(finding.place)
                continue
            if known is None:
                note(self._start.run, finding.record())
                print(finding.line(), file=self._out or sys.stderr, flush=True)
            self.findings[finding.place] = finding
        if look:
            self._suspected = suspected

    def _terms(self, model: nn.Module, batch: Any) -> Any:
        """The task's terms, in the run's number format."""
        with self._autocast():
            return self._task.terms(model, batch)

    def _autocast(self) -> AbstractContextManager[Any]:
        start = self._start
        return nullcontext() if start.dtype == torch.float32 else torch.autocast(start.device.type, start.dtype)

    def _batch(self, number: int) -> Any:
        experiment: Any = self._start.experiment
        world = from_environment()
        return self._start.data.batch(
            number, seed=experiment.seed, rank=world.rank, world=world.size, size=experiment.data.batch
        )
