"""The search: stage by stage with Optuna's sampler and pruner, then the best against the default with fresh seeds."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from regard.config import to_toml
from regard.data import Batch, Data
from regard.errors import UserError
from regard.train import Experiment, Observer
from regard.train.observer import TrainingStart
from regard.trials import Trial, train_trials
from regard.trials.pool import finished, run_trial
from regard.tune.result import DefaultComparison, Stage, Tried, TuneResult
from regard.tune.space import SHARES, STAGES, OptionRange, Space, Value, changed, values_of, with_flops

if TYPE_CHECKING:
    import optuna

JOURNAL = "journal.log"
NEEDED = "`regard tune` searches with Optuna; install it: pip install 'regard[tune]'"
PARTS = 4  # of a trial: an evaluation after each, and trials that are worse than the median of the others end there
RANDOM = 3  # trials of a stage before its sampler and pruner learn from the others
EVALUATED, SAVED = 100_000, 250  # targets of an evaluation, and steps between checkpoints
FRESH = 1000  # added to the seed for the comparison: seeds that no trial of the search has seen
QUANTILE = 0.25  # of the trials: importance is what distinguishes this best share of them from the rest
Say = Callable[[str], None]


def tune(
    experiment: Experiment,
    data: Data[Batch],
    flops: float,
    folder: Path,
    trials: int = 10,
    seeds: int = 3,
    stages: Sequence[str] = tuple(STAGES),
    say: Say = print,
) -> TuneResult:
    """Search in ``folder``, each training with ``flops``; what a former call has done there is read.

    Each stage starts from what the stages before it fixed, whose loss is known: trial 0 of the first stage is the
    experiment as it is.
    """
    require_optuna()
    default = prepared(experiment, data, flops)
    best, loss, done = default, None, []
    for name, count in shared(trials, stages, experiment).items():
        stage = search(name, count, best, loss, data, flops, folder, say)
        best, loss = configured(best, stage.fixed, data, flops), stage.loss
        done.append(stage)
        say(f"{name}: {', '.join(f'{key} {value:.4g}' for key, value in stage.fixed.items())} ({loss:.4f})")
    compared = compare(default, best, folder, seeds, say) if best != default else None
    return TuneResult(done, default, best, importance(done, default), compared)


def prepared(experiment: Experiment, data: Data[Batch], flops: float) -> Experiment:
    """The experiment as a trial: so many FLOPs in steps, an evaluation after each of its parts."""
    found = with_flops(experiment, data, flops)
    train = found.train
    every = max(1, math.ceil((train.steps or 1) / PARTS))
    evaluated = train.evaluate_tokens or EVALUATED
    train = replace(train, evaluate_every=every, evaluate_tokens=evaluated, save_every=SAVED)
    return replace(found, train=train).checked()


def configured(base: Experiment, values: Mapping[str, Value], data: Data[Batch], flops: float) -> Experiment:
    """The base with these values, at the same FLOPs."""
    return prepared(changed(base, values), data, flops) if values != values_of(base, values) else base


def shared(trials: int, stages: Sequence[str], experiment: Experiment) -> dict[str, int]:
    """The number of trials of each stage that has something to vary: at least one each, in the notes' order."""
    if unknown := [name for name in stages if name not in STAGES]:
        raise UserError(f"--stages: {unknown[0]!r} is none of {', '.join(STAGES)}")
    names = [name for name, space in STAGES.items() if name in stages and space(experiment)]
    if trials < len(names) or not names:
        raise UserError(f"--trials is {trials}, and there are {len(names)} stages; give at least one trial to each")
    left, whole = trials - len(names), sum(SHARES[name] for name in names)
    found = {name: 1 + math.floor(left * SHARES[name] / whole) for name in names}
    found[names[0]] += trials - sum(found.values())
    return found


def search(
    name: str,
    count: int,
    base: Experiment,
    loss: float | None,
    data: Data[Batch],
    flops: float,
    folder: Path,
    say: Say,
) -> Stage:
    """One stage: ``count`` trials beside the base, whose ``loss`` is known but in the first stage."""
    import optuna

    space = STAGES[name](base)
    own = values_of(base, space)
    study = open_study(f"{name}-{hashlib.sha256(to_toml(base).encode()).hexdigest()[:8]}", folder, base.seed)
    if not study.trials:
        if loss is None:
            study.enqueue_trial(own)
        else:
            study.add_trial(optuna.trial.create_trial(params=own, distributions=distributions(space), value=loss))
    states = optuna.trial.TrialState
    for stopped in study.get_trials(states=(states.RUNNING,)):  # interrupted: its run continues
        study.enqueue_trial(stopped.params)
        study.tell(stopped.number, state=states.FAIL)
    while len(study.get_trials(states=(states.COMPLETE, states.PRUNED))) <= count:
        asked = study.ask(distributions(space))
        say(f"{name}, trial {asked.number}: {train_one(study, asked, base, data, flops, folder)}")
    tried = [as_tried(name, one) for one in study.trials if one.params]
    if not any(one.loss is not None for one in tried):
        raise UserError(f"no trial of the stage {name} finished; lower the learning rate of the recipe")
    fixed = study.best_trial
    assert fixed.value is not None
    return Stage(name, space, tried, dict(fixed.params), fixed.value)


def train_one(
    study: optuna.Study, asked: optuna.Trial, base: Experiment, data: Data[Batch], flops: float, folder: Path
) -> str:
    """Train one trial and tell its loss to the study; what happened, in words."""
    import optuna

    values = ", ".join(f"{key} {value:.4g}" for key, value in asked.params.items())
    try:
        experiment = configured(base, asked.params, data, flops)
        trial = Trial(study.study_name, experiment)
        outcome = finished(folder, trial) or run_trial(folder, trial, [lambda: Pruning(asked)])
    except optuna.TrialPruned:
        study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        return f"{values}: pruned, worse than the median of the others"
    except UserError as problem:  # such as a width that the number of heads does not divide
        study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        return f"{values}: not possible ({problem})"
    if not math.isfinite(outcome.loss):
        study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        return f"{values}: {outcome.problem}"
    study.tell(asked, outcome.loss)
    return f"{values}: validation loss {outcome.loss:.4f}"


class Pruning(Observer):
    """Reports the losses of a trial's parts, and ends it if Optuna's pruner says so."""

    def __init__(self, trial: optuna.Trial):
        self.trial = trial
        self.steps, self.reported = 0, 0

    def started(self, start: TrainingStart) -> None:
        """Trials of one stage may have different numbers of steps, so that parts are compared, not steps."""
        self.steps = start.experiment.train.steps or 1

    def evaluated(self, step: int, measures: dict[str, float]) -> None:
        import optuna

        part = min(PARTS, math.ceil(PARTS * step / self.steps))
        if part == self.reported:  # by the evaluation at the end
            return
        self.reported = part
        self.trial.report(measures["validation_loss"], part)
        if part < PARTS and self.trial.should_prune():
            raise optuna.TrialPruned


def open_study(name: str, folder: Path, seed: int) -> optuna.Study:
    """The study of a stage in the folder's journal, as a former call left it."""
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    folder.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    study = optuna.create_study(study_name=name, storage=storage, direction="minimize", load_if_exists=True)
    # After a restart the sampler draws anew, and not again what it drew for the trials that are done.
    study.sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM, seed=seed + len(study.trials))
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=RANDOM, n_warmup_steps=PARTS // 2, n_min_trials=2)
    return study


def distributions(space: Space) -> dict[str, optuna.distributions.BaseDistribution]:
    """The space in Optuna's classes."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    return {
        key: FloatDistribution(one.low, one.high, log=one.log)
        if isinstance(one, OptionRange)
        else CategoricalDistribution(one.values)
        for key, one in space.items()
    }


def as_tried(stage: str, trial: optuna.trial.FrozenTrial) -> Tried:
    """A trial as it is recorded."""
    state = {"COMPLETE": "done", "PRUNED": "pruned"}.get(trial.state.name, "failed")
    return Tried(trial.number, stage, dict(trial.params), trial.value if state == "done" else None, state)


def compare(default: Experiment, best: Experiment, folder: Path, seeds: int, say: Say) -> DefaultComparison:
    """Both configurations with the same fresh seeds: the trials of a search chose the best by their own seed."""
    numbers = [default.seed + FRESH + n for n in range(seeds)]
    named = {"default": default, "best": best}
    trials = [
        Trial(f"{name}, seed {n}", replace(one, train=replace(one.train, evaluate_every=None), seed=n))
        for name, one in named.items()
        for n in numbers
    ]
    found = dict(train_trials(trials, folder, say=say))
    losses = [found[one].loss for one in trials]
    return DefaultComparison(losses[:seeds], losses[seeds:])


def importance(stages: Sequence[Stage], default: Experiment) -> dict[str, float]:
    """PED-ANOVA importance of every key over the trials of all stages (Watanabe et al. 2023); they sum to 1.

    The trials of a stage have the values that the stages before it fixed, and the default's for the later ones.
    """
    import optuna

    spaces = {key: one for stage in stages for key, one in stage.space.items()}
    now, joined = values_of(default, spaces), optuna.create_study()
    for stage in stages:
        known = 0 if stage is stages[0] else 1  # trial 0 of a later stage repeats the best of the one before
        for one in stage.tried[known:]:
            if one.loss is not None:
                values = now | dict(one.values)
                joined.add_trial(
                    optuna.trial.create_trial(params=values, distributions=distributions(spaces), value=one.loss)
                )
        now |= dict(stage.fixed)
    if len(joined.trials) <= RANDOM:
        return {}
    with warnings.catch_warnings():  # the evaluator was declared experimental in Optuna 4
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=QUANTILE)
        return optuna.importance.get_param_importances(joined, evaluator=evaluator)


def require_optuna() -> None:
    """Import Optuna, which then prints warnings only."""
    try:
        import optuna
    except ImportError as problem:
        raise UserError(NEEDED) from problem
    optuna.logging.set_verbosity(optuna.logging.WARNING)
