"""The training loop: a run is a function of (config, seed, step), so it can be interrupted and resumed at any step."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from regard.config import to_toml
from regard.config.parts import with_options
from regard.data import Batch
from regard.errors import UserError
from regard.models.device import find_device
from regard.parallel.group import TIMEOUT, agree, process_group
from regard.parallel.layout import Layout
from regard.parallel.waiting import slowest
from regard.parallel.world import ONE, from_environment
from regard.runs import Run, environment
from regard.runs.asked import ASKED, check_same, wait_for_run
from regard.runs.folder import CONFIG
from regard.train.budget import settled
from regard.train.budget_clock import BudgetClock
from regard.train.device import memory
from regard.train.diagnose import diagnose
from regard.train.engine import Engine, Update
from regard.train.evaluate import evaluate
from regard.train.evaluation_size import decided, undecided, whole_batches
from regard.train.experiment import Experiment
from regard.train.guard import check_start, guarded, keep_freed_memory
from regard.train.observer import Observer, TrainingResult, TrainingStart, TrainingStep
from regard.train.prepare import prepare
from regard.train.saving import Saver
from regard.train.stopping import EarlyStopping


def train(
    experiment: Experiment,
    run: Run,
    observers: Sequence[Observer] = (),
    resume: bool = False,
    timeout: float = TIMEOUT,
    layout: Layout = ONE,
    began: float | None = None,
    reserve: float = 0.0,
) -> TrainingResult:
    """Train in the folder ``run``, from the start or, with ``resume``, from its newest undamaged checkpoint.

    Takes the run's lock. The config in the folder is replaced by the final one, with the data's vocabulary and the
    budget in steps. SIGINT and SIGTERM save a checkpoint at the end of the step; the result is then ``interrupted``.
    With RANK and WORLD_SIZE set, every process calls this with the same folder; ``timeout``: seconds that one of them
    waits for another, and ``layout``: how they share the work, which may change from one session to the next. A budget
    in seconds counts from ``began``, a ``time.perf_counter()`` (default: now), and ``reserve`` seconds of it are left
    for what the caller does afterwards.
    """
    keep_freed_memory()
    began = time.perf_counter() if began is None else began
    experiment = experiment.checked()
    world = from_environment(layout)
    device = find_device(experiment.train.device, world.local, "--train.device")
    if not resume and run.steps():
        raise UserError(
            f"the run {run.path} has checkpoints already; choose another --name, or go on with it: "
            f"regard resume {run.path}{with_options()}"
        )
    with process_group(world, device, timeout) as world, run.lock() if world.rank == 0 else nullcontext():
        engine = prepare(experiment, run, world, began, resume)
        return TrainingSession(engine, run, observers, BudgetClock.of(engine, began, reserve)).run()


def fit(
    experiment: Experiment,
    name: str | None = None,
    observers: Sequence[Observer] = (),
    runs: str | Path = "runs",
    layout: Layout = ONE,
    again: bool = False,
) -> TrainingResult:
    """Train an experiment into the new run folder ``runs/name``; ``regard.train`` is this function.

    The default name is ``run-1``, ``run-2``, ... A run that fails before its first record is removed. ``layout``: how
    several processes, each of which calls this, share the work. ``again``: continue the run if it exists.
    """
    check_start(experiment.checked(), layout)
    world, asked = from_environment(layout), to_toml(experiment)
    if again and name is None:
        raise UserError("again=True needs the name of the run")

    def choose() -> str:
        path = Path(runs) / (name or "")
        if again and (path / CONFIG).is_file():
            check_same(Run.open(path), asked)
            return json.dumps([path.name, True])
        return json.dumps([Run.create(Path(runs), name, asked, {**environment(), ASKED: asked}).path.name, False])

    chosen, existed = json.loads(agree(world, TIMEOUT, choose))
    run = wait_for_run(Path(runs) / chosen, world.rank)
    if existed and run.steps():
        experiment = run.load(type(experiment))  # complete
    try:
        return train(experiment, run, observers, resume=existed, layout=layout)
    except BaseException:
        if not existed and world.rank == 0:
            run.discard()
        raise


class TrainingSession:
    """Training from the engine's current step to the last one, or until a signal arrives."""

    def __init__(self, engine: Engine, run: Run, observers: Sequence[Observer], budget: BudgetClock | None = None):
        self.engine, self.folder, self.budget = engine, run, budget
        self.config = engine.experiment.train
        self.steps = self.config.steps or 0
        self.stopping = EarlyStopping(engine, self.config.patience)
        self.saver = Saver(engine, run)
        self.writes = engine.world.rank == 0
        self.observers = tuple(each for each in observers if self.writes or each.every_rank)
        self.loss, self.validation_loss = _last(run, "loss"), _last(run, "validation_loss")

    def run(self) -> TrainingResult:
        """Train. Observers are notified of the end, whether it is success, a signal or an error."""
        try:
            return self._run()
        except BaseException as error:
            for observer in self.observers:
                observer.failed(error)
            raise

    def _run(self) -> TrainingResult:
        engine, progress, world = self.engine, self.engine.progress, self.engine.world
        dtype = engine.precision.dtype
        began = (engine.device, dtype, progress.step, engine.data, engine.optimizer, len(engine.lanes))
        start = TrainingStart(engine.experiment, self.folder, engine.model, *began)
        self._timed(lambda: self._tell(lambda observer: observer.started(start)), BudgetClock.watched)
        # The clock continues from the end of the previous session.
        clock = time.perf_counter() - progress.seconds
        self._logged = (progress.seconds, progress.tokens)
        self._rank_seconds: list[tuple[float, ...]] = []  # of the steps since the last record
        interrupted = False
        with deferred_signals() as received, self.saver:
            engine.received = received
            while progress.step < self.steps and not interrupted:
                update = guarded(engine.update, engine)
                if not update.finite:
                    raise diagnose(engine, update)
                progress.seconds = time.perf_counter() - clock
                interrupted = bool(received) if world.size == 1 else update.interrupted
                if self.budget is not None and (changed := self.budget.replanned()) is not None:
                    self._change(changed)
                self._after(update, interrupted)
            self._saved(self.saver.wait())
        if progress.step >= self.steps and self.config.seconds is not None:
            self._change(settled(engine.experiment))
        result = TrainingResult(
            path=self.folder.path,
            step=progress.step,
            steps=self.steps,
            loss=self.loss,
            validation_loss=self.validation_loss,
            tokens=progress.tokens,
            seconds=progress.seconds,
            interrupted=interrupted and progress.step < self.steps,
            until=None if self.budget is None else self.budget.until,
        )
        self._tell(lambda observer: observer.finished(result))
        return result

    def _tell(self, what: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            what(observer)

    def _after(self, update: Update, interrupted: bool) -> None:
        """Log, evaluate and save if due, in this order: a checkpoint comes after the records of its step."""
        config, progress = self.config, self.engine.progress
        step, last = progress.step, progress.step == self.steps
        measured = (update.loss, update.lr, update.norm, progress.tokens, progress.seconds, update.terms)
        finished = TrainingStep(step, *measured, progress.position, update.rank_seconds)
        self._rank_seconds.append(update.rank_seconds)
        evaluates = last or bool(config.evaluate_every and step % config.evaluate_every == 0)
        if evaluates:  # then observers measure too
            self._timed(lambda: self._tell(lambda observer: observer.stepped(finished)), BudgetClock.watched)
        else:
            self._tell(lambda observer: observer.stepped(finished))
        if step == 1 or step % config.log_every == 0 or last:  # also the first: the curve begins there
            self._log(update)
        if evaluates:
            self._timed(self._evaluate, BudgetClock.evaluated)
        if self.stopping.stops and not last:
            self.steps, last = step, True
        if last:
            self.stopping.restore()
        if last or interrupted or (config.save_every and step % config.save_every == 0):
            self._timed(lambda: self._saved(self.saver.save()), BudgetClock.saved)

    def _timed(self, work: Callable[[], None], tell: Callable[[BudgetClock, float], None]) -> None:
        """``work()``; a budget in seconds learns how long it takes."""
        if self.budget is None:
            return work()
        self.budget.spend()  # also for the counter in a checkpoint
        began = time.perf_counter()
        work()
        return tell(self.budget, time.perf_counter() - began)

    def _change(self, experiment: Experiment) -> None:
        """Go on with a config in which a number was set. It is on disk before anything depends on it."""
        self.engine.experiment, self.config = experiment, experiment.train
        self.steps = min(self.steps, self.engine.progress.step) if self.stopping.stops else self.config.steps or 0
        if self.writes:
            self.folder.replace_config(to_toml(experiment))
        self._tell(lambda observer: observer.changed(experiment))

    def _saved(self, steps: list[int]) -> None:
        for step in steps:
            for observer in self.observers:
                observer.saved(step, self.folder.path)

    def _log(self, update: Update) -> None:
        progress = self.engine.progress
        self.loss = update.loss
        seconds, tokens = self._logged
        self._logged = (progress.seconds, progress.tokens)
        record: dict[str, object] = {
            "step": progress.step,
            "loss": update.loss,
            "lr": update.lr,
            "grad_norm": update.norm,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 4),
            "tokens_per_second": round((progress.tokens - tokens) / max(progress.seconds - seconds, 1e-9), 1),
            "memory": memory(self.engine.device),
        }
        if len(update.terms) > 1:
            record |= update.terms
        record |= self.engine.details() | slowest(self._rank_seconds)
        self._rank_seconds = []
        if self.writes:
            self.folder.log(record)

    def _validation_batches(self) -> Iterator[Batch]:
        """The validation batches; observers are notified of the share that is done."""
        engine, done, total = self.engine, 0, self.engine.data.validation_count
        if total is not None and self.config.evaluate_tokens is not None:
            total = min(total, self.config.evaluate_tokens)
        for batch in engine.validation_batches():
            yield batch
            done += engine.world.parts * batch[0].numel()  # with padding, so the share is approximate
            for observer in self.observers:
                observer.evaluating(engine.progress.step, min(1.0, done / total) if total else None)

    def _evaluate(self) -> None:
        if self.validation_loss is None and undecided(self.engine):  # otherwise an older regard has begun this run
            budget, engine = self.budget, self.engine
            self._change(decided(engine, whole_batches(engine)) if budget is None else budget.decided())
        share = 1 / self.engine.experiment.validation_stride(self.engine.data)
        measures = guarded(lambda: evaluate(self.engine, self._validation_batches(), share), self.engine)
        if measures is None:
            return
        step = self.engine.progress.step
        self.validation_loss = measures["validation_loss"]
        self.stopping.evaluated(step, measures)
        if self.writes:
            self.folder.log({"step": step, **measures})
        self._tell(lambda observer: observer.evaluated(step, measures))


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """A context in which the first SIGINT or SIGTERM is added to a list; a second one raises KeyboardInterrupt.

    Python delivers signals to the main thread only; in another thread this context does nothing.
    """
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    previous = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _last(run: Run, name: str) -> float | None:
    """The last value that was logged, for a resumed run. Values that are not finite are written as strings."""
    values = [record[name] for record in run.metrics() if name in record]
    return float(values[-1]) if values else None
