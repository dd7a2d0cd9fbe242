"""Residual connections and norms: how deep a network can be and still learn."""

import math
from collections.abc import Callable

import numpy as np

from regard.config import load
from regard.data import TextConfig, TextData
from regard.models import GPTConfig
from regard.pages.charts import Axes, Series
from regard.pages.html import ChartSection
from regard.studies.page import Study, lines, machine
from regard.studies.short_training import train_shortly
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig

DEPTHS, STEPS = (4, 8, 16, 32, 64, 128), 100
#: A model that is at least this many nats below the unigram entropy has learned from its context.
LEARNED = 0.1
KINDS: dict[str, dict[str, str]] = {
    "residual, pre-norm": {"block": "pre-norm"},
    "residual, post-norm": {"block": "post-norm"},
    "residual, no norm": {"block": "pre-norm", "norm": "none"},
    "no residual, norm": {"block": "no-residual"},
    "no residual, no norm": {"block": "no-residual", "norm": "none"},
}


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """How deep may a network be and still learn? Depth 4 to 128, with and without residual connections and norms.

    regard study depth

    Character models of Shakespeare of width 64, each trained for 100 steps by AdamW with warm-up. The study compares
    the loss after the same number of steps. Ten minutes on 2 cores.
    """
    steps = max(5, round(STEPS * scale))
    data_config = TextConfig(batch=8)
    data = data_config.build(64)
    unigram = entropy(data)
    train = TrainConfig(steps, optimizer=AdamWConfig(), schedule=CosineScheduleConfig(warmup=0.1), device="cpu")
    losses: dict[str, list[float]] = {}
    for name, parts in KINDS.items():
        losses[name] = []
        for depth in DEPTHS:
            sizes = {"context": 64, "width": 64, "heads": 4, "layers": depth, "zero_init": False, "tied": False}
            config = load(GPTConfig, {**sizes, "vocabulary": data.vocabulary, **parts})
            experiment = Experiment(config, data_config, train=train, seed=seed)
            losses[name].append(train_shortly(experiment, data).loss)
            say(f"{name}, {depth} layers: {format_loss(losses[name][-1])}")
    curves = {
        name: [(float(d), x) for d, x in zip(DEPTHS, values, strict=True) if math.isfinite(x)]
        for name, values in losses.items()
    }
    line = Series("unigram entropy", [(float(DEPTHS[0]), unigram), (float(DEPTHS[-1]), unigram)], 7)
    chart = ChartSection(
        f"Loss after {steps} steps",
        "The mean of the last ten training losses, in nats per character. A model at or above the flat line has "
        "learned no more than the frequency of each character. A missing point is a loss that was not finite.",
        [*lines(curves), line],
        Axes("layers", "loss, nats per character", x_low=0),
    )
    return Study(
        words(losses, unigram),
        [chart],
        {"depths": DEPTHS, "losses": {n: [*map(format_loss, f)] for n, f in losses.items()}, "unigram": unigram},
        f"width 64, context 64, batch 8, {steps} steps, AdamW, seed {seed}, {machine()}",
    )


def words(losses: dict[str, list[float]], unigram: float) -> list[str]:
    """The depths at which each kind learns."""
    results = []
    for name, values in losses.items():
        able = [d for d, x in zip(DEPTHS, values, strict=True) if x < unigram - LEARNED]
        if len(able) == len(DEPTHS):
            results.append(f"{name}: learns at every depth up to {DEPTHS[-1]}")
        elif able:
            results.append(f"{name}: learns at {', '.join(map(str, able))} layers and not at the others")
        else:
            results.append(f"{name}: learns at no depth tried")
    return [
        f"The unigram entropy, the loss of the best model without context, is {unigram:.3f} nats per character; a "
        f"model has learned if its loss is {LEARNED} below.",
        ". ".join(f"{one[0].upper()}{one[1:]}" for one in results) + ".",
    ]


def entropy(data: TextData) -> float:
    """The entropy of single characters in the training part: the loss of the best model without context."""
    counts = np.zeros(data.vocabulary)
    for position in range(64):
        np.add.at(counts, data.batch(position, seed=0, size=64).targets.flatten().numpy(), 1)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def format_loss(loss: float) -> str:
    """A loss for tables and messages."""
    return f"{loss:.3f}" if math.isfinite(loss) else "not finite"
