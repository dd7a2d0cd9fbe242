"""The doctor during training: an observer that runs the checks and reports findings, without changing the run.

Numbers that every step has are checked after every step. Everything else is an examination: the present gradients, and
side passes in evaluation mode, without gradients and with separate random states, so that the run stays the same to the
bit. How often the doctor examines depends on the cost of the last examinations.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TextIO

import torch

from regard.attention import BackendRefused
from regard.doctor.check import Check, all_checks
from regard.doctor.context import Batch, Resources, TrainingRun
from regard.doctor.finding import Finding
from regard.doctor.gradients import Gradients, UpdateMeter, layer_parts
from regard.doctor.side_pass import SidePass
from regard.models.base import Model
from regard.runs.findings import cut, note, noted
from regard.tasks import Term
from regard.train import Observer, TrainingResult, TrainingStart, TrainingStep
from regard.train.device import memory
from regard.train.guard import capacity
from regard.train.shard import from_environment, is_sharded

#: The share of training time that the doctor may take. Three examinations are made at any cost: short runs need them.
SHARE = 0.015
EVERY = 10  # steps between two examinations at least


class Doctor(Observer):
    """Watches a training. ``limit`` is the memory it may use, in bytes, if that is less than the device has."""

    def __init__(self, limit: int | None = None, out: TextIO | None = None):
        self.findings: dict[tuple[str, str], Finding] = {}
        self.cost = 0.0  # seconds spent
        self.examinations = 0
        self.active = True  # False after an error in a check
        self._limit, self._out = limit, out
        self._unconfirmed: set[tuple[str, str]] = set()
        self._checks: list[Check] = []

    def started(self, start: TrainingStart) -> None:
        self._start, train = start, start.experiment.train
        self._run = TrainingRun(
            start.experiment, data=start.data, device=start.device, get_batch=self._batch, terms=self._terms()
        )
        self._run.position = start.step * train.accumulate
        # A sharded model runs on all ranks or on none, and the observer runs on the first one only.
        if not any(is_sharded(parameter) for parameter in start.model.parameters()):
            self._run.model = start.model
        self._checks = [check(self._run) for check in all_checks().values()]
        self._parts = {} if self._run.model is None else layer_parts(self._run.model)
        self._updates = UpdateMeter(self._parts)
        self._times: deque[float] = deque(maxlen=20)
        self._recent: deque[tuple[float, range]] = deque(maxlen=60)  # seconds and batch numbers of the last steps
        self._step, self._seconds, self._own_seconds = start.step, None, 0.0
        self._first_seconds = 0.0
        self._memory_before = memory(start.device)
        self._limit = self._limit or capacity(start.device)
        left = (train.steps or 0) - start.step
        self._due = {start.step + max(1, -(-left * third // 3)) for third in (1, 2, 3)}
        self._measured = {start.step + max(2, left // 10), *self._due}  # steps before a measured update
        if start.step:
            cut(start.run, start.step)
            for record in start.run.metrics():
                self._run.history.read(record)
        known = (Finding.read(record) for record in noted(start.run))  # an earlier session has reported them
        self.findings |= {finding.key: finding for finding in known if finding is not None}

    def stepped(self, step: TrainingStep) -> None:
        began = time.perf_counter()
        if self._seconds is None:
            self._first_seconds = step.seconds
        else:
            self._times.append(step.seconds - self._seconds - self._own_seconds)
            self._recent.append((self._times[-1], range(self._run.position, step.position)))
        self._seconds, self._step, self._run.position = step.seconds, step.step, step.position
        self._run.history.add(step.step, step.loss, step.lr, step.norm)
        if self.active:
            try:
                self._check(step)
            except BackendRefused:  # training raises it too
                self.active = False
            except Exception as problem:  # a model that cannot be examined can still be trained
                self.active = False
                self._print(f"the doctor gave up ({type(problem).__name__}: {problem}); training continues without it")
        self._own_seconds = time.perf_counter() - began
        self.cost += self._own_seconds

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        if self._checks and self.active:
            history = self._run.history
            history.validation.append((step, measures["validation_loss"]))
            self._report(self._ask(lambda check: check.on_evaluation(history)))

    def finished(self, result: TrainingResult) -> None:
        """Write the findings as they are now."""
        for finding in self.findings.values():
            if finding.step > finding.since:
                note(self._start.run, finding.record())
        count, name = len(self.findings), self._start.run.path
        summary = f"{count} found, see regard doctor {name}" if count else "no faults found"
        self._print(f"doctor: {summary} ({self.examinations} examinations, {self.cost:.1f} s)")

    def failed(self, error: BaseException) -> None:
        if not self._checks or isinstance(error, KeyboardInterrupt):
            return
        self._step += 1
        try:
            self._report(self._ask(lambda check: check.on_failure(error)))
        except Exception as problem:  # the error that ended the run matters, not this one
            self._print(f"the doctor gave up ({type(problem).__name__}: {problem})")

    def _check(self, step: TrainingStep) -> None:
        history = self._run.history
        if (update := self._updates.compare()) is not None:
            history.updates.append(update.ratio)
            history.unmoved = update.unmoved
        self._report(self._ask(lambda check: check.on_step(step)))
        if self._is_due(step):
            self._report(self._examine(step), confirm=True)
            self.examinations += 1
        if step.step in self._measured:
            self._updates.copy()

    def _is_due(self, step: TrainingStep) -> bool:
        """Whether to examine: at three steps at any cost, else while it takes a small share of the time."""
        if step.step in self._due:
            return True
        each = self.cost / self.examinations if self.examinations else 5 * statistics.median(self._times or [1e9])
        return step.step % EVERY == 0 and self.cost + each < SHARE * (step.seconds - self._first_seconds)

    def _examine(self, step: TrainingStep) -> Iterator[Finding]:
        run, start = self._run, self._start
        yield from self._ask(lambda check: check.on_history(run.history))
        if run.model is not None:
            gradients = Gradients.of(run.model, self._parts, step.norm, run.history.norm())
            yield from self._ask(lambda check: check.on_gradients(gradients))
        seconds = statistics.median(self._times) if self._times else 0.0
        batches = run.recent_batches(seconds, reading=SHARE / 3 * (step.seconds - self._first_seconds))
        yield from self._ask(lambda check: check.on_batches(batches))
        used, limit = memory(start.device), self._limit
        resources = Resources(seconds, batches.seconds, self._recent, used, self._memory_before, limit)
        yield from self._ask(lambda check: check.on_resources(resources))
        if run.model is not None and run.usable(batches.newest):
            side_pass = SidePass(run, batches.newest, self.examinations)
            yield from self._ask(lambda check: check.on_model(side_pass))

    def _ask(self, hook: Callable[[Check], Iterable[Finding]]) -> Iterator[Finding]:
        """The findings of one hook of every check."""
        for check in self._checks:
            yield from hook(check)

    def _report(self, findings: Iterable[Finding], confirm: bool = False) -> None:
        """Report new findings and update known ones. One that needs confirmation waits for the next examination."""
        unconfirmed, checks = set(), all_checks()
        for finding in findings:
            known = self.findings.get(finding.key)
            finding = replace(finding, step=self._step, since=known.since if known else self._step)
            if known is None and checks[finding.kind].needs_confirmation and finding.key not in self._unconfirmed:
                unconfirmed.add(finding.key)
                continue
            if known is None:
                note(self._start.run, finding.record())
                self._print(finding.line())
            self.findings[finding.key] = finding
        if confirm:
            self._unconfirmed = unconfirmed

    def _print(self, line: str) -> None:
        print(line, file=self._out or sys.stderr, flush=True)

    def _terms(self) -> Callable[[Model, Batch], dict[str, Term]]:
        """The task's loss terms, in the run's number format."""
        start, task = self._start, self._start.experiment.task.build()
        mixed = start.dtype != torch.float32

        def terms(model: Model, batch: Any) -> dict[str, Term]:
            with torch.autocast(start.device.type, start.dtype if mixed else torch.bfloat16, enabled=mixed):
                return task.terms(model, batch)

        return terms

    def _batch(self, number: int) -> Batch:
        experiment, world = self._start.experiment, from_environment()
        assert self._start.data is not None
        return self._start.data.batch(
            number, seed=experiment.seed, rank=world.rank, world=world.size, size=experiment.data.batch
        )
