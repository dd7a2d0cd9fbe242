"""A ladder of trainings: sizes times lengths times seeds, each with a schedule of its own length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from regard.data import Batch, Data
from regard.errors import UserError
from regard.models import ModelConfig
from regard.models.device import find_device
from regard.models.shapes import build_on_meta
from regard.plan.size import parameters_without_embeddings, with_parameters
from regard.plan.speed import measure
from regard.scale.law import LEAST
from regard.train import AdamWConfig, Experiment
from regard.train.budget import tokens_per_step
from regard.train.shard import World
from regard.trials import Trial

LENGTHS = 4  # each twice as long as the one before
TOKENS_PER_PARAMETER = 40  # in the longest training of the largest model, where the text is long enough
EVALUATED, SAVED = 200_000, 1000  # targets of an evaluation, and steps between checkpoints


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
    seconds: dict[int, float]  # of a step, by parameters; empty if it was not measured

    def estimate(self, rungs: Sequence[Rung]) -> float | None:
        """Seconds of these trainings one after the other, without evaluations; None if steps were not measured."""
        return sum(one.steps * self.seconds[one.parameters] for one in rungs) if self.seconds else None

    def warnings(self) -> list[str]:
        """What may break the law."""
        most = max(one.tokens for one in (*self.rungs, *self.larger))
        if most <= self.once:
            return []
        return [
            f"the longest training reads the training text {most / self.once:.1f} times ({most:,} of "
            f"{self.once:,.0f} tokens): a law of tokens that are read once does not hold there, as models overfit"
        ]


def ladder(
    experiment: Experiment,
    sizes: int = 5,
    ratio: float = 2.0,
    largest: int | None = None,
    tokens: Sequence[int] | None = None,
    seeds: int = 1,
    larger: float = 4.0,
    timed: bool = True,
) -> Ladder:
    """``sizes`` models, each ``ratio`` times as large as the one before, and one ``larger`` times the last.

    ``largest``: of the sizes, in parameters without embeddings; default: that of the experiment's own model.
    ``tokens``: lengths of training; default: four, up to 40 tokens per parameter or to the whole text.
    """
    data = experiment.data.build(experiment.model.context)
    model = experiment.model_for(data)
    each = tokens_per_step(experiment, data, World())
    once = data.epoch(experiment.data.batch, experiment.train.accumulate) * each
    counts = {"sizes": sizes, "seeds": seeds} | ({} if tokens is None else {"tokens": len(set(tokens))})
    for name, number in counts.items():
        if number < (least := 1 if name == "seeds" else LEAST):
            raise UserError(f"--{name}: {number} is too few, a law needs {least} at least")
    if not 1 < ratio < math.inf or not 1 < larger < math.inf:
        raise UserError(f"--ratio and --larger are factors above 1, not {ratio:g} and {larger:g}")
    top = count(model) if largest is None else largest
    models = [sized(model, top * ratio ** (n - sizes + 1)) for n in range(sizes)]
    if len({count(one) for one in models}) < sizes:
        raise UserError("two sizes of the ladder come to the same model; give a larger --largest or --ratio")
    if tokens is None:
        longest = min(TOKENS_PER_PARAMETER * count(models[-1]), once)
        tokens = [round(longest / 2**n) for n in range(LENGTHS)][::-1]
    steps = [max(1, round(length / each)) for length in sorted(set(tokens))]

    def rung(config: ModelConfig, length: int, seed: int) -> Rung:
        size = count(config)
        name = f"{size} parameters, {round(length * each)} tokens" + (f", seed {seed}" if seeds > 1 else "")
        return Rung(size, round(length * each), length, Trial(name, of_size(experiment, model, config, length, seed)))

    numbers = [experiment.seed + n for n in range(seeds)]
    rungs = [rung(one, length, seed) for one in models for length in steps for seed in numbers]
    after = [rung(sized(model, count(models[-1]) * larger), steps[-1], seed) for seed in numbers]
    seconds = step_seconds([*rungs, *after], data) if timed else {}
    return Ladder(rungs, after, once, seconds)


def count(model: ModelConfig) -> int:
    """The parameters without embeddings."""
    return parameters_without_embeddings(build_on_meta(model))


def sized(model: ModelConfig, parameters: float) -> Any:
    """The model with about so many parameters: another width, and the same number of layers.

    Learning rates transfer from width to width, and not from depth to depth (Yang et al. 2022, section 6).
    """
    return with_parameters(model, parameters, keep="layers", counted="without_embeddings")


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


def step_seconds(rungs: Sequence[Rung], data: Data[Batch]) -> dict[int, float]:
    """The seconds of a step of each size, measured in a few steps."""
    found: dict[int, float] = {}
    for one in rungs:
        if one.parameters not in found:
            experiment = one.trial.experiment
            device = find_device(experiment.train.device)
            found[one.parameters] = measure(experiment, experiment.batch(data, 0), device).seconds
    return found
