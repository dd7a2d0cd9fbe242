"""The loop: a run is a function of (config, seed, step), and may be stopped and taken up again at any moment."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from regard.config import to_toml
from regard.errors import UserError
from regard.runs import Run
from regard.train.allocator import keep_freed_memory
from regard.train.budget import settle
from regard.train.device import memory, pick_device
from regard.train.diagnose import diagnose
from regard.train.engine import Engine, Update
from regard.train.evaluate import evaluate
from regard.train.experiment import Experiment
from regard.train.guard import guarded, make_engine
from regard.train.interrupt import Interrupts
from regard.train.observer import Observer, TrainingResult, TrainingStart, TrainingStep
from regard.train.restore import restore, save
from regard.train.shard import World, from_environment, joined


def train(experiment: Experiment, run: Run, observers: Sequence[Observer] = (), resume: bool = False) -> TrainingResult:
    """Train in the folder `run`, from the start or, with `resume`, from its newest whole checkpoint.

    The run's lock is taken here. The config in the folder is replaced by the one that was settled: with the data's
    vocabulary and the budget in steps. SIGINT and SIGTERM save a checkpoint at the end of the step and return a
    `TrainingResult` that says `interrupted`. With RANK and WORLD_SIZE set, every process calls this on the same folder.
    """
    keep_freed_memory()
    began = time.perf_counter()
    experiment = experiment.checked()
    world = from_environment()
    device = pick_device(experiment.train.device, world.local)
    if not resume and run.steps():
        raise UserError(
            f"the run {run.path} has checkpoints already; choose another --name, or go on with it: "
            f"regard resume {run.path}"
        )
    with joined(world, device) as world, run.lock() if world.rank == 0 else nullcontext():
        return TrainingSession(prepare(experiment, run, world, began, resume), run, observers).sit()


def prepare(experiment: Experiment, run: Run, world: World, began: float, resume: bool) -> Engine:
    """An engine at the point where the run starts or goes on; the run's config is what was settled on."""
    data = experiment.data.build(experiment.model.context)
    experiment = replace(experiment, model=experiment.model_for(data))
    experiment = settle(experiment, data, world, began)
    engine = make_engine(experiment, data, world)
    if resume:
        take_up(engine, run)
    # Only now: a run that cannot be taken up, because its text is another one, say, stays as it was.
    if world.rank == 0:
        run.freeze(to_toml(experiment))
        if data.tokenizer is not None:
            run.add("tokenizer.json", data.tokenizer.save)
    world.wait()
    return engine


def take_up(engine: Engine, run: Run) -> None:
    """Go back to the newest whole checkpoint, or to the very start, and forget what was logged past it."""
    checkpoint = run.latest()
    if checkpoint is not None:
        restore(engine, checkpoint)
    elif run.damaged:
        raise UserError(
            f"no checkpoint of {run.path} is whole ({run.damaged[0]}); restore one from a copy, or start a new run"
        )
    if engine.world.rank == 0:
        run.rewind(engine.progress.step)


class TrainingSession:
    """One stretch of training, from where the engine stands to the end or to a signal."""

    def __init__(self, engine: Engine, run: Run, observers: Sequence[Observer]):
        self.engine, self.run = engine, run
        self.config = engine.experiment.train
        self.steps = self.config.steps or 0
        self.writes = engine.world.rank == 0
        self.observers = tuple(observers) if self.writes else ()
        self.loss, self.validation_loss = _last_measures(run) if engine.progress.step else (None, None)

    def sit(self) -> TrainingResult:
        """Train. Observers hear of every end, whatever it is."""
        try:
            return self._sit()
        except BaseException as error:
            for observer in self.observers:
                observer.failed(error)
            raise

    def _sit(self) -> TrainingResult:
        engine, progress, world = self.engine, self.engine.progress, self.engine.world
        precision = engine.precision.dtype
        start = TrainingStart(
            engine.experiment, self.run, engine.model, engine.device, precision, progress.step, engine.data
        )
        for observer in self.observers:
            observer.started(start)
        # The clock of earlier sittings goes on from where it stopped.
        clock = time.perf_counter() - progress.seconds
        self._logged = (progress.seconds, progress.tokens)
        interrupted = False
        with Interrupts() as interrupts:
            while progress.step < self.steps and not interrupted:
                update = guarded(engine, engine.update)
                if not update.finite:
                    raise diagnose(engine, update)
                progress.seconds = time.perf_counter() - clock
                interrupted = world.any(interrupts.requested)
                self._after(update, interrupted)
        result = self._result(interrupted and progress.step < self.steps)
        for observer in self.observers:
            observer.finished(result)
        return result

    def _after(self, update: Update, interrupted: bool) -> None:
        """What is due after a step, in this order: whatever a checkpoint follows was logged before it."""
        config, progress = self.config, self.engine.progress
        step, last = progress.step, progress.step == self.steps
        if self.observers:
            told = (step, update.loss, update.rate, update.norm, progress.tokens, progress.seconds, update.terms)
            seen = TrainingStep(*told, progress.position)
            for observer in self.observers:
                observer.stepped(seen)
        if step == 1 or step % config.log_every == 0 or last:  # the first too: a curve begins where training does
            self._log(update)
        if last or (config.evaluate_every and step % config.evaluate_every == 0):
            self._evaluate()
        if last or interrupted or (config.save_every and step % config.save_every == 0):
            save(self.engine, self.run)
            for observer in self.observers:
                observer.saved(step, self.run.path)

    def _log(self, update: Update) -> None:
        progress = self.engine.progress
        self.loss = update.loss
        seconds, tokens = self._logged
        self._logged = (progress.seconds, progress.tokens)
        record: dict[str, Any] = {
            "step": progress.step,
            "loss": update.loss,
            "lr": update.rate,
            "grad_norm": update.norm,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 4),
            "tokens_per_second": round((progress.tokens - tokens) / max(progress.seconds - seconds, 1e-9), 1),
            "memory": memory(self.engine.device),
        }
        if len(update.terms) > 1:
            record |= update.terms
        record |= self.engine.details()
        if self.writes:
            self.run.log(record)

    def _evaluate(self) -> None:
        measures = guarded(self.engine, lambda: evaluate(self.engine))
        if measures is None:
            return
        step = self.engine.progress.step
        self.validation_loss = measures["validation_loss"]
        if self.writes:
            self.run.log({"step": step, **measures})
        for observer in self.observers:
            observer.evaluated(step, measures)

    def _result(self, interrupted: bool) -> TrainingResult:
        progress = self.engine.progress
        return TrainingResult(
            path=self.run.path,
            step=progress.step,
            steps=self.steps,
            loss=self.loss,
            validation_loss=self.validation_loss,
            tokens=progress.tokens,
            seconds=progress.seconds,
            interrupted=interrupted,
        )


def _last_measures(run: Run) -> tuple[float | None, float | None]:
    """The last loss and validation loss that were logged, for a run that is taken up."""
    loss = validation_loss = None
    for record in run.metrics():
        loss = record.get("loss", loss)
        validation_loss = record.get("validation_loss", validation_loss)
    # What is not finite is written as a word.
    return None if loss is None else float(loss), None if validation_loss is None else float(validation_loss)
