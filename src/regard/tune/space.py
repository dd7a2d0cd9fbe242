"""What each stage of a search varies, around the values of the experiment it starts from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from regard.config import override
from regard.data import Batch, Data
from regard.plan.speed import step_work
from regard.plan.trace import trace
from regard.train import Experiment

RATES = 8.0  # learning rates from this times lower to this times higher
LONGEST_WARMUP = 0.2  # of the steps
DROPOUTS = (0.0, 0.05, 0.1, 0.2, 0.3)
BATCHES = (0.25, 0.5, 1, 2, 4)  # times the batch size
WIDTHS = (0.5, 0.75, 1, 1.5, 2)  # times the width
HEADS = (0.5, 1, 2)  # times the number of heads
LEAST_WIDTH = 4  # of the narrowest head that is tried

Value = int | float


@dataclass(frozen=True)
class OptionRange:
    """Real numbers from ``low`` to ``high``; ``log``: evenly spaced in their logarithms."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Options:
    """A few numbers to choose from."""

    values: Sequence[Value]


Space = dict[str, OptionRange | Options]  # by the key of the experiment, as it is written on the command line


def rates(experiment: Experiment) -> Space:
    """The learning rates of the optimizer. Muon has two: of the matrices inside the blocks, and of the rest."""
    own = vars(experiment.train.optimizer)
    found = {f"train.optimizer.{name}": own[name] for name in ("lr", "rest_lr") if own.get(name)}
    return {key: OptionRange(value / RATES, value * RATES, log=True) for key, value in found.items()}


def warmup(experiment: Experiment) -> Space:
    """The warm-up as a share of the steps; a length in steps stays."""
    now = vars(experiment.train.schedule).get("warmup", math.inf)
    return {"train.schedule.warmup": OptionRange(0.0, LONGEST_WARMUP)} if now <= LONGEST_WARMUP else {}


def batch(experiment: Experiment) -> Space:
    """The batch size; the FLOPs of the training stay."""
    return {"data.batch": around(experiment.data.batch, BATCHES)}


def dropout(experiment: Experiment) -> Space:
    """The dropout of the model, if it has one."""
    now = current_dropout(experiment)
    return {} if now is None else {"train.dropout": Options(sorted({*DROPOUTS, now}))}


def architecture(experiment: Experiment) -> Space:
    """Layers, width and heads, as far as the model has them. Every width is divisible by every number of heads."""
    own, found = vars(experiment.model), Space()
    if "layers" in own:
        found["model.layers"] = Options(sorted({max(1, own["layers"] + n) for n in (-2, -1, 0, 1, 2, own["layers"])}))
    heads = own.get("heads")
    if "width" in own:
        unit = 1
        if heads and own.get("kv_heads") is None:
            found["model.heads"] = around(heads, [x for x in HEADS if heads * x % 1 == 0])
            unit = math.lcm(*map(int, found["model.heads"].values)) * LEAST_WIDTH
        width = own["width"]
        tried = {max(unit, round(width * x / unit) * unit) for x in WIDTHS} | {width}
        found["model.width"] = Options(sorted(tried))
    return found


#: In the order of a search: what matters most, and costs nothing to change, first.
STAGES: Mapping[str, Callable[[Experiment], Space]] = {
    "learning rate": rates,
    "warm-up": warmup,
    "batch": batch,
    "dropout": dropout,
    "architecture": architecture,
}
SHARES = {"learning rate": 0.35, "warm-up": 0.15, "batch": 0.15, "dropout": 0.1, "architecture": 0.25}  # of the trials


def around(value: int, factors: Sequence[float]) -> Options:
    """A number times each of some factors."""
    return Options(sorted({max(1, round(value * factor)) for factor in factors}))


def current_dropout(experiment: Experiment) -> float | None:
    """The dropout of the training; None if the model has none to set."""
    own = vars(experiment.model).get("dropout")
    return own if experiment.train.dropout is None else experiment.train.dropout


def values_of(experiment: Experiment, keys: Iterable[str]) -> dict[str, Value]:
    """The experiment's own values of these keys."""
    found: dict[str, Value] = {}
    for key in keys:
        value: object = experiment
        for name in key.split("."):
            value = vars(value)[name]
        if key == "train.dropout":
            value = current_dropout(experiment)
        assert isinstance(value, int | float)
        found[key] = value
    return found


def changed(experiment: Experiment, values: Mapping[str, Value]) -> Experiment:
    """The experiment with these values; a UserError names one that is impossible."""
    return override(experiment, dict(values)).checked()


def step_flops(experiment: Experiment, data: Data[Batch]) -> float:
    """The FLOPs of one step. Dropout has none, and a step with it cannot always be traced."""
    train = replace(experiment.train, dropout=None)
    sized = replace(experiment, model=experiment.model_for(data).with_dropout(0.0), train=train)
    return step_work(trace(sized, experiment.batch(data, 0)), experiment.train.micro_batches).flops


def with_flops(experiment: Experiment, data: Data[Batch], flops: float) -> Experiment:
    """The experiment with as many steps as come nearest to these FLOPs in all."""
    steps = max(1, round(flops / step_flops(experiment, data)))
    nothing = {"tokens": None, "epochs": None, "seconds": None, "patience": None}
    return replace(experiment, train=replace(experiment.train, steps=steps, **nothing))
