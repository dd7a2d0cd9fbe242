"""A budget in seconds is kept: during the run its number of steps is changed to what fits into the time that is left.

The first plan is that of ``budget.budget_in_steps``. Every plan is written into the config before a step depends on
it, and the schedule follows from the plans alone (``schedule.virtual_step``). So a resumed run, or one that is trained
again from its config, needs no clock to be the same to the bit.
"""

import math
import time
from collections import deque
from dataclasses import replace
from typing import NamedTuple

from regard.train.budget import LEAST_SHARE
from regard.train.engine import Engine
from regard.train.evaluation_size import decided, evaluated_batches, time_evaluation
from regard.train.experiment import Experiment
from regard.train.guard import guarded

#: The plan is compared with the clock after this share of the budget, and more often towards the end; the first time
#: after so many steps.
EVERY, FIRST = 0.02, 8
#: A change of less than this share of the budget is not worth one.
NOTICEABLE = 0.002
#: The speed is that of the latest part of the run that is as long as what is left of it, and at least this share.
SHORTEST = 0.05
#: Bytes per second that a checkpoint is expected to be written with, until one was.
WRITTEN = 3 * 10**8


class Mark(NamedTuple):
    """A moment of the run."""

    step: int
    seconds: float  # of training, without evaluations and checkpoints


class BudgetClock:
    """Compares a run with its budget in seconds. Every rank has one, and calls the same methods at the same steps."""

    @classmethod
    def of(cls, engine: Engine, began: float, reserve: float) -> "BudgetClock | None":
        """The clock of a run whose budget is in seconds, unless it has ended."""
        train = engine.experiment.train
        ended = engine.progress.step >= (train.steps or 0)
        return None if train.seconds is None or ended else cls(engine, train.seconds, began, reserve)

    def __init__(self, engine: Engine, seconds: float, began: float, reserve: float):
        """``reserve``: seconds for what comes after the training. A resumed run has what is left of its budget."""
        self.engine, self.seconds, self.reserve = engine, seconds, reserve
        self._began = began - engine.progress.spent
        self._evaluation = guarded(lambda: time_evaluation(engine), engine)
        self._watching = 0.0  # what observers take at an evaluation
        self._measured_speed: float | None = None  # seconds of a step at the time of these two
        # Rounded up, as an estimate: weights, and two moments of each.
        self._saving = sum(3 * p.numel() * p.element_size() for p in engine.model.parameters()) / WRITTEN
        now, left = time.perf_counter(), self._began + seconds - time.perf_counter()
        #: When the budget is over. Long preparations do not leave an untrained model.
        self.until = now + max(left, LEAST_SHARE * min(seconds, seconds - engine.progress.spent))
        self._paused = 0.0
        step, train = engine.progress.step, engine.experiment.train
        self._marks = deque([Mark(step, now)])
        first = min(FIRST, round(EVERY * ((train.steps or 1) - step)))
        if step:  # a resumed run, which may be at its end
            first = min(first, int((self.until - now) / 4 / max(engine.progress.seconds / step, 1e-9)))
        self._due = step + engine.world.broadcast(max(1, first))

    def spend(self) -> None:
        """Bring the counter of the seconds that are spent up to date."""
        self.engine.progress.spent = time.perf_counter() - self._began

    def watched(self, seconds: float) -> None:
        """Observers have taken so long at an evaluation, or before the first step, for what they measure then."""
        self._paused += seconds
        self._watching = seconds

    def evaluated(self, seconds: float) -> None:
        """An evaluation has taken so long."""
        self._paused += seconds
        self._evaluation = self._evaluation._replace(seconds=seconds / max(1, self._batches(0)))
        self._measured_speed = self._speed(0.0)

    def decided(self) -> Experiment:
        """The experiment with the size of its evaluations; the last one has no more time than there is."""
        most, each = math.inf, self._evaluation
        if self.engine.progress.step >= (self.engine.experiment.train.steps or 0) and each.seconds:
            most = (self.until - self.reserve - self._saving - time.perf_counter()) / each.seconds
        return decided(self.engine, each.batches, most)

    def saved(self, seconds: float) -> None:
        """A checkpoint has taken so long."""
        self._paused += seconds
        self._saving = seconds

    def replanned(self) -> Experiment | None:
        """The experiment with another number of steps, if it is time to compare and the difference is noticeable."""
        engine, train, step = self.engine, self.engine.experiment.train, self.engine.progress.step
        planned = train.steps or 0
        if step == self._marks[0].step + 1:  # the first step, which may compile the model, is not typical
            self._marks.append(Mark(step, self._now()))
        if step < self._due or step >= planned:
            return None
        speed = self._speed(self.until - time.perf_counter())
        self._marks.append(Mark(step, self._now()))
        more = self._fitting(step, speed)
        if more > 0 and abs(step + more - planned) * speed < NOTICEABLE * self.seconds:
            more = planned - step
        more = engine.world.broadcast(more)  # every rank must take the same number, and compare at the same step
        often = max(1, round(EVERY * self.seconds / speed))
        self._due = step + engine.world.broadcast(max(1, min(often, more // 2)))
        if step + more == planned:
            return None
        plans = (*train.plans, (step, step + more))
        return replace(engine.experiment, train=replace(train, steps=step + more, plans=plans))

    def _now(self) -> float:
        return time.perf_counter() - self._paused

    def _speed(self, left: float) -> float:
        """Seconds of a step in the latest part of the run, given the seconds that are left."""
        now, step = self._now(), self.engine.progress.step
        since = now - max(left, SHORTEST * self.seconds)
        usable = [mark for mark in list(self._marks)[1:] if mark.step < step] or [self._marks[0]]
        first = max((mark for mark in usable if mark.seconds <= since), default=usable[0])
        return max(1e-9, (now - first.seconds) / max(1, step - first.step))

    def _batches(self, more: int) -> int:
        """Batches of an evaluation, if the first one comes after so many more steps."""
        engine, progress = self.engine, self.engine.progress
        trained = progress.tokens * (1 + more / max(1, progress.step))
        return evaluated_batches(engine.experiment, self._evaluation.batches, engine.data.validation_count, trained)

    def _fitting(self, step: int, speed: float) -> int:
        """How many more steps fit into the time that is left, with their evaluations and checkpoints."""
        train = self.engine.experiment.train
        if self._measured_speed is None:
            self._measured_speed = speed
        slower = speed / self._measured_speed  # a machine that has become busier is slower at everything
        left = self.until - self.reserve - time.perf_counter()

        def due(every: int | None, more: int) -> int:
            """How often something happens from here on, before the end."""
            return 0 if every is None or not more else (step + more - 1) // every - (step - 1) // every

        more = max(0, round(left / speed))
        while more > 0:
            until_first = min(more, -step % train.evaluate_every if train.evaluate_every else more)
            evaluation = slower * (self._watching + self._batches(until_first) * self._evaluation.seconds)
            taken = more * speed + (1 + due(train.evaluate_every, more)) * evaluation
            taken += (1 + due(train.save_every, more)) * self._saving
            if taken - left <= speed / 2:
                break
            more -= max(1, int((taken - left) / speed))
        return max(0, more)
