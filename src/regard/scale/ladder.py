"""A ladder of trainings: sizes times lengths times seeds, each with a schedule of its own length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from regard.data import Batch, Data
from regard.errors import UserError
from regard.models import ModelConfig
from regard.models.device import find_device
from regard.models.shapes import build_on_meta
from regard.parallel.world import World
from regard.plan.size import nearest_width, parameters_without_embeddings
from regard.plan.speed import measure
from regard.scale.law import LEAST
from regard.train import AdamWConfig, Experiment
from regard.train.budget import tokens_per_step
from regard.trials import Trial

LENGTHS = 4  # each twice as long as the one before
EVALUATED, SAVED = 200_000, 250  # targets of an evaluation, and steps between checkpoints
START = 5.0  # seconds to start the processes
FORWARD = 1 / 3  # of a training step: the forward pass
TOLERANCE = 1.01  # times the training text that count as one reading of it: steps are whole


class Rung(NamedTuple):
    """One training of the ladder."""

    parameters: int  # without embeddings
    tokens: int  # rounded to whole steps
    steps: int
    trial: Trial


@dataclass(frozen=True)
class Ladder:
    """Trainings to fit a law to, and those of a larger model to test it with."""

    rungs: Sequence[Rung]
    larger: Sequence[Rung]  # one per seed
    once: float  # tokens of the training part
    each: float  # tokens of a step
    seconds: dict[int, float]  # of a step, by parameters; empty if it was not measured

    def estimate(self, rungs: Sequence[Rung], workers: int) -> float:
        """Seconds that these trainings take in ``workers`` processes, with an evaluation at the end of each."""
        evaluation = FORWARD * EVALUATED / self.each
        times = [(one.steps + evaluation) * self.seconds[one.parameters] for one in rungs]
        return max(sum(times) / max(1, workers), *times, START) if times else 0.0

    def warnings(self) -> list[str]:
        """What may break the law."""
        most = max(one.tokens for one in (*self.rungs, *self.larger))
        if most <= self.once * TOLERANCE:
            return []
        return [
            f"the longest training reads the training text {most / self.once:.1f} times ({most:,} of "
            f"{self.once:,.0f} tokens): a law of tokens that are read once does not hold there, as models overfit"
        ]


def ladder(
    experiment: Experiment,
    sizes: int = 4,
    ratio: float = 2.0,
    largest: int | None = None,
    tokens: Sequence[int] | None = None,
    seeds: int = 1,
    larger: float = 4.0,
    threads: int | None = None,
) -> Ladder:
    """``sizes`` models, each ``ratio`` times as large as the one before, and one ``larger`` times the last.

    ``largest``: of the sizes, in parameters without embeddings; default: that of the experiment's own model.
    ``tokens``: lengths of training; default: four, up to the experiment's own. ``threads``: of a training; steps are
    timed with so many, and not at all if it is None.
    """
    data = experiment.data.build(experiment.model.context)
    model = experiment.model_for(data)
    each = tokens_per_step(experiment, data, World())
    once = data.epoch(experiment.data.batch, experiment.train.micro_batches) * each
    check(sizes, ratio, largest, tokens, seeds, larger)
    top = count(model) if largest is None else largest
    models = [sized(model, top * ratio ** (n - sizes + 1)) for n in range(sizes)]
    counts = [count(one) for one in models]
    if len(set(counts)) < sizes:
        raise UserError("two sizes of the ladder come to the same model; give a larger --largest or --ratio")
    if tokens is None:
        tokens = [round(own_length(experiment, each, once) / 2**n) for n in range(LENGTHS)]
    steps = sorted({max(1, round(length / each)) for length in tokens})
    if len(steps) < LEAST:
        raise UserError(f"the lengths come to {len(steps)} different numbers of steps; give longer ones with --tokens")

    def rung(config: ModelConfig, length: int, seed: int) -> Rung:
        size = count(config)
        name = f"{size} parameters, {round(length * each)} tokens" + (f", seed {seed}" if seeds > 1 else "")
        return Rung(size, round(length * each), length, Trial(name, of_size(experiment, model, config, length, seed)))

    numbers = [experiment.seed + n for n in range(seeds)]
    rungs = [rung(one, length, seed) for one in models for length in steps for seed in numbers]
    tested = sized(model, counts[-1] * larger)
    after = [rung(tested, steps[-1], seed) for seed in numbers]
    seconds = {} if threads is None else step_seconds([*rungs, *after], data, threads)
    return Ladder(rungs, after, once, each, seconds)


def check(
    sizes: int, ratio: float, largest: int | None, tokens: Sequence[int] | None, seeds: int, larger: float
) -> None:
    """Refuse what gives no law."""
    counts = {"sizes": sizes, "seeds": seeds} | ({} if tokens is None else {"tokens": len(set(tokens))})
    for name, number in counts.items():
        if number < (least := 1 if name == "seeds" else LEAST):
            raise UserError(f"--{name}: {number} is too few, a law needs {least} at least")
    if not 1 < ratio < math.inf or not 1 < larger < math.inf:
        raise UserError(f"--ratio and --larger are factors above 1, not {ratio:g} and {larger:g}")
    if (largest is not None and largest < 1) or any(length < 1 for length in tokens or ()):
        raise UserError("--largest and --tokens are numbers of at least 1")


def own_length(experiment: Experiment, each: float, once: float) -> float:
    """Tokens of the experiment's own training; the whole text once if its budget is in seconds."""
    train = experiment.train
    if train.seconds is not None:
        return once
    if train.tokens is not None:
        return train.tokens
    return (train.steps or 1) * each if train.epochs is None else train.epochs * once


def count(model: ModelConfig) -> int:
    """The parameters without embeddings."""
    return parameters_without_embeddings(build_on_meta(model))


def sized(model: ModelConfig, parameters: float) -> Any:
    """The model with about so many parameters: another width, and the same number of layers.

    Learning rates transfer from width to width, and not from depth to depth (Yang et al. 2022, section 6).
    """
    return nearest_width(model, parameters, counted="without_embeddings")


def of_size(experiment: Experiment, base: ModelConfig, model: ModelConfig, steps: int, seed: int) -> Experiment:
    """The training of one size: its own whole schedule, and a learning rate for its width.

    Muon's updates have spectral norms that do not depend on the width, so its rate stays (Bernstein and Newhouse 2024);
    AdamW's is that of the recipe times its width over the new one (Yang et al. 2022, table 8, hidden matrices).
    """
    train, optimizer = experiment.train, experiment.train.optimizer
    if isinstance(optimizer, AdamWConfig):
        optimizer = replace(optimizer, lr=optimizer.lr * base.width / model.width)
    budget: dict[str, Any] = {"steps": steps, "tokens": None, "epochs": None, "seconds": None, "patience": None}
    evaluated = train.evaluate_tokens or EVALUATED
    changed = replace(
        train, **budget, optimizer=optimizer, evaluate_every=None, evaluate_tokens=evaluated, save_every=SAVED
    )
    return replace(experiment, model=model, train=changed, seed=seed).checked()


def step_seconds(rungs: Sequence[Rung], data: Data[Batch], threads: int) -> dict[int, float]:
    """The seconds of a step of each size, measured in a few steps with so many threads."""
    found: dict[int, float] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    for one in rungs:
        if one.parameters not in found:
            experiment = one.trial.experiment
            device = find_device(experiment.train.device)
            found[one.parameters] = measure(experiment, experiment.batch(data, 0), device).seconds
    torch.set_num_threads(before)
    return found
