"""The doctor runs all checks: during training as an observer, and afterwards on a run folder.

During training, numbers that every step has are checked after every step. Everything else is an examination: the
present gradients, and side passes in evaluation mode, without gradients and with separate random states, so that the
run stays the same to the bit. `Schedule` says when the doctor examines.
"""

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import TextIO

from regard.attention import BackendRefused
from regard.doctor.check import (
    Check,
    Finding,
    Findings,
    all_checks,
    common_pass,
    covered,
    explained,
    judge_pass,
    known_findings,
    merged,
)
from regard.doctor.context import History, Resources, TrainingRun
from regard.doctor.gradients import Gradients, UpdateMeter, layer_parts
from regard.doctor.replay import COPIES, ROOM, Replay
from regard.doctor.schedule import FREE_READ, Examination, Schedule
from regard.errors import UserError
from regard.parallel.tensors import is_sharded
from regard.parallel.world import from_environment
from regard.train import Experiment, Observer, TrainingResult, TrainingStart, TrainingStep
from regard.train.device import memory
from regard.train.guard import capacity


class Doctor(Observer):
    """Watches a training. ``limit`` is the memory it may use, in bytes, if that is less than the device has."""

    def __init__(self, limit: int | None = None, out: TextIO | None = None):
        self.findings: dict[tuple[str, str], Finding] = {}
        self.cost = 0.0  # CPU seconds spent
        self.examinations = 0
        self.active = True  # False after an error in a check
        self._limit, self._out = limit, out
        self._unconfirmed: set[tuple[str, str]] = set()
        self._checks: list[Check] = []
        self._evaluating: int | None = None  # the step of the evaluation whose mode was checked

    @property
    def history(self) -> History:
        """The numbers of the run so far."""
        return self._run.history

    @property
    def experiment(self) -> Experiment:
        """The run's experiment."""
        return self._run.experiment

    @property
    def parameters(self) -> int:
        """The number of the model's parameters."""
        return sum(p.numel() for p in self._start.model.parameters())

    def started(self, start: TrainingStart) -> None:
        self._start, train = start, start.experiment.train
        experiment = start.experiment
        with suppress(UserError):  # what the run should be, according to its folder
            experiment = start.run.load(Experiment)
        self._run = TrainingRun(experiment, data=start.data, device=start.device, dtype=start.dtype)
        self._run.lanes = start.lanes
        self._run.position = start.step * self._run.micro_batches
        # A sharded model runs on all ranks or on none, and the observer runs on the first one only.
        if not any(is_sharded(parameter) for parameter in start.model.parameters()):
            self._run.model = start.model
        self._run.optimizer = start.optimizer
        self._checks = [check(self._run) for check in all_checks().values()]
        self._each_step = [check for check in self._checks if type(check).on_step is not Check.on_step]
        frozen = train.adapt.kind == "full"
        self._parts = {} if self._run.model is None else layer_parts(self._run.model, frozen=frozen)
        self._updates = UpdateMeter(self._parts)
        self._recent: deque[tuple[float, range]] = deque(maxlen=60)  # seconds and batch numbers of the last steps
        self._step, self._seconds, self._own_seconds = start.step, None, 0.0
        self._memory_before = memory(start.device)
        self._limit = self._limit or capacity(start.device)
        self._schedule = Schedule(start.experiment, start.step, start.lanes)
        if start.step:
            self._run.history.read(start.run.metrics())
            newest = start.run.latest()
            self._run.resumed = newest if newest is not None and newest.step == start.step else None
        self.findings |= known_findings(start.run)  # an earlier session has reported them
        with self._at_work():
            self._guarded(self._begin)

    def changed(self, experiment: Experiment) -> None:
        """Expect what the folder says from here on."""
        with suppress(UserError):
            experiment = self._start.run.load(Experiment)
        self._run.experiment, self._schedule.last = experiment, experiment.train.steps or 0
        if self._run.replay is not None:
            self._run.replay.change(experiment)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Count the time spent."""
        began = time.process_time()
        yield
        self.cost += time.process_time() - began

    def _begin(self) -> None:
        """What is checked before the first step."""
        run, start = self._run, self._start
        size = 0 if run.model is None else sum(p.numel() * p.element_size() for p in run.model.parameters())
        room = self._limit is None or COPIES * size < ROOM * self._limit
        if run.model is not None and room and from_environment().size == 1:
            run.replay = Replay(run.experiment, start.data, start.device, run.model, start.optimizer)
        self._report(chain(*(check.on_start() for check in self._checks)))
        if self._schedule.replays(start.step):
            self._predict()

    def _predict(self) -> None:
        """Make the next step of the run with the second engine, if it can be made."""
        run = self._run
        numbers = range(run.position, run.position + run.micro_batches)
        if run.replay is None or not all(run.usable(run.batch(number)) for number in numbers):
            return
        try:
            run.replay.predict(self._step, run.position // run.lanes)
        except (RuntimeError, ValueError, KeyError) as problem:  # memory, or weights that do not fit the config's model
            run.replay = None
            self._print(f"doctor: steps are not replayed ({type(problem).__name__}: {str(problem).splitlines()[0]})")

    def stepped(self, step: TrainingStep) -> None:
        began = time.perf_counter()
        position = step.position * self._run.lanes
        if self._seconds is not None:
            seconds = step.seconds - self._seconds - self._own_seconds
            self._recent.append((seconds, range(self._run.position, position)))
        self._seconds, self._step = step.seconds, step.step
        self._run.position, self._run.tokens = position, step.tokens
        self._run.history.add(step.step, step.loss, step.lr, step.norm)
        if self.active:
            with self._at_work():
                self._guarded(lambda: self._check(step))
        self._own_seconds = time.perf_counter() - began

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BackendRefused:  # training raises it too
            self.active = False
        except Exception as problem:  # a model that cannot be examined can still be trained
            self.active = False
            self._print(f"the doctor gave up ({type(problem).__name__}: {problem}); training continues without it")

    def evaluating(self, step: int, done: float | None) -> None:
        if self.active and self._evaluating != step:
            self._evaluating = step
            with self._at_work():
                self._report(chain(*(check.on_evaluating() for check in self._checks)))

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        if self._checks and self.active:
            history = self._run.history
            history.validation.append((step, measures["validation_loss"]))
            with self._at_work():
                self._report(chain(*(check.on_evaluation(history) for check in self._checks)))

    def finished(self, result: TrainingResult) -> None:
        """Write the findings as they are now."""
        if self.active and not result.interrupted:
            records = self._start.run.metrics()
            self._guarded(lambda: self._report(chain(*(check.on_end(records) for check in self._checks))))
        for finding in self.findings.values():
            if finding.step > finding.since:
                self._start.run.add_finding(finding.record())
        count, name = len(self.findings), self._start.run.path
        summary = f"{count} found, see regard doctor {name}" if count else "no faults found"
        self._print(f"doctor: {summary} ({self.examinations} examinations, {self.cost:.1f} s)")

    def failed(self, error: BaseException) -> None:
        if not self._checks or isinstance(error, KeyboardInterrupt):
            return
        self._step += 1
        try:
            self._report(chain(*(check.on_failure(error) for check in self._checks)))
        except Exception as problem:  # the error that ended the run matters, not this one
            self._print(f"the doctor gave up ({type(problem).__name__}: {problem})")

    def _check(self, step: TrainingStep) -> None:
        run, schedule = self._run, self._schedule
        if (update := self._updates.compare()) is not None:
            run.history.updates.append(update)
        replayed = None if run.replay is None else run.replay.compare(step)
        if replayed is not None:
            self._report(chain(*(check.on_replay(replayed) for check in self._checks)))
        self._report(chain(*(check.on_step(step) for check in self._each_step)))
        if (depth := schedule.examinations.get(step.step)) is not None:
            self._report(self._examine(step, depth), confirm=True)
            self.examinations += 1
        if step.step in schedule.updates:
            self._updates.copy()
        if schedule.replays(step.step):
            self._predict()

    def _step_seconds(self) -> float:
        """The median time of the last steps; 0 before the second one."""
        return statistics.median([seconds for seconds, _ in self._recent][-20:] or [0.0])

    def _examine(self, step: TrainingStep, depth: Examination) -> Findings:
        run, seconds = self._run, self._step_seconds()
        batches = run.recent_batches(max(seconds / 10, 0.05), reading=max(FREE_READ, run.tokens))
        used, norm = memory(run.device), run.history.norm()
        gradients = None if run.model is None else Gradients.of(run.model, self._parts, step.norm, norm)
        resources = Resources(seconds, batches.seconds, self._recent, used, self._memory_before, self._limit)
        model_pass = None
        needed = depth is not Examination.RECORDS or bool(self._unconfirmed) or bool(self.findings)
        if needed:
            deep = depth is Examination.DEEP or bool(self._unconfirmed)  # which may have been found in a deep one
            model_pass = common_pass(run, batches.newest, self._checks, self.examinations, deep)
        for check in self._checks:
            yield from check.on_history(run.history)
            if gradients is not None:
                yield from check.on_gradients(gradients)
            yield from check.on_batches(batches)
            yield from check.on_resources(resources)
            yield from judge_pass(check, model_pass)

    def _report(self, findings: Findings, confirm: bool = False) -> None:
        """Report new findings and update known ones. One that needs confirmation waits for the next examination."""
        unconfirmed: dict[tuple[str, str], Finding] = {}
        # A cause whose place changes is never confirmed: it hides its consequences once.
        seen_before, checks = {kind for kind, _ in self._unconfirmed}, all_checks()
        for finding in sorted(merged(findings), key=lambda one: checks[one.kind].rank + bool(checks[one.kind].follows)):
            known = self.findings.get(finding.key)
            if known is None and covered(finding, self.findings.values()):
                continue
            if known is None and explained(
                finding,
                [*self.findings.values(), *(one for one in unconfirmed.values() if one.kind not in seen_before)],
            ):
                continue
            finding = replace(finding, step=self._step, since=known.since if known else self._step)
            if known is None and checks[finding.kind].needs_confirmation and finding.key not in self._unconfirmed:
                unconfirmed[finding.key] = finding
                continue
            if known is None:
                self._start.run.add_finding(finding.record())
                self._print(finding.line())
            self.findings[finding.key] = finding
        if confirm:
            self._unconfirmed = set(unconfirmed)

    def _print(self, line: str) -> None:
        print(line, file=self._out or sys.stderr, flush=True)
