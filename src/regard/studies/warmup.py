"""Warm-up of the learning rate, for norms on the residual path and inside its branches (Xiong et al. 2020)."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import load
from regard.data import TextBatch, TextConfig, TextData
from regard.measure.interval import Mean
from regard.models import GPTConfig
from regard.models.gpt import GPT
from regard.nn.init import initialize, normal
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.parallel.world import World
from regard.studies.depth import LEARNED, entropy, format_loss
from regard.studies.page import Study, lines, machine
from regard.studies.short_training import compared, held_out, train_shortly
from regard.train import AdamWConfig, ConstantScheduleConfig, Experiment, TrainConfig
from regard.train.engine import Engine

DATA = TextConfig(batch=8)
LAYERS, CONTEXT, STEPS, WARMUP, SEEDS = 8, 64, 300, 0.2, 2
FIRST = 40  # updates whose effect on the predictions is measured
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
CHANGE_RATE = 1e-3  # of the measured updates
BLOCKS = ("post-norm", "pre-norm")
RUNS = {
    f"{block}, {how}": (block, share) for block in BLOCKS for how, share in (("no warm-up", 0), ("warm-up", WARMUP))
}
Curves = dict[str, list[float]]
Losses = dict[str, list[list[float]]]  # by rate, then by seed


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """Why warm up the learning rate? The largest rate that trains, with norms on the residual path and before it.

    regard study warmup

    Character models of Shakespeare with 8 layers of width 64, Xavier initialization as in Vaswani et al. 2017, AdamW
    without gradient clipping: gradients by layer at initialization, how far the first updates move the predictions,
    and the loss after 300 steps at five learning rates, with a linear warm-up over the first 60 and without, with two
    seeds. Four to seven minutes on one core.
    """
    steps = max(5, round(STEPS * scale))
    data = DATA.build(CONTEXT)
    configs = {block: model_config(block, data.vocabulary) for block in BLOCKS}
    starts = {block: [xavier_weights(config, seed + n) for n in range(SEEDS)] for block, config in configs.items()}
    (probe,) = held_out(data, 32, 1)
    gradients = {block: gradients_by_layer(configs[block], starts[block][0], probe) for block in BLOCKS}
    losses: Losses = {}
    curves: dict[tuple[str, float], list[float]] = {}
    changes: Curves = {}
    for name, (block, share) in RUNS.items():
        runs = {rate: experiment(configs[block], rate, share * steps, steps, seed) for rate in RATES}
        changes[name] = prediction_changes(runs[CHANGE_RATE], data, starts[block][0], probe, min(FIRST, steps))
        losses[name] = []
        for rate, run in runs.items():
            done = [train_shortly(replace(run, seed=seed + n), data, start) for n, start in enumerate(starts[block])]
            losses[name].append([one.loss for one in done])
            curves[name, rate] = done[0].losses
            say(f"{name}, rate {rate:g}: {', '.join(format_loss(one.loss) for one in done)}")
    unigram, shown = entropy(data), widest(losses)
    return Study(
        words(losses, unigram, gradients, changes),
        [
            _by_rate(losses, steps, unigram),
            _curves({name: curves[name, shown] for name in RUNS}, shown),
            _gradients(gradients),
            _changes(changes),
        ],
        {
            "rates": RATES,
            "losses": {k: [[*map(format_loss, x)] for x in v] for k, v in losses.items()},
            **{"unigram": unigram, "gradients": gradients, "changes": changes},
        },
        f"{LAYERS} layers, width 64, context {CONTEXT}, batch {DATA.batch}, {steps} steps, warm-up over {WARMUP:.0%} "
        f"of them, AdamW, no clipping, seeds {seed} to {seed + SEEDS - 1}, {machine()}",
    )


def experiment(config: GPTConfig, rate: float, warmup: float, steps: int, seed: int) -> Experiment:
    """A constant rate after the warm-up, so that nothing else lowers it."""
    schedule = ConstantScheduleConfig(warmup=warmup)
    train = TrainConfig(steps, optimizer=AdamWConfig(rate), schedule=schedule, clip=None, device="cpu")
    return Experiment(config, DATA, train=train, seed=seed)


def model_config(block: str, vocabulary: int) -> GPTConfig:
    """The parts of Vaswani et al. 2017 in a decoder."""
    parts = {"block": block, "norm": "layer", "feedforward": "relu", "position": "sinusoidal"}
    sizes = {"context": CONTEXT, "width": 64, "heads": 4, "layers": LAYERS}
    return load(GPTConfig, {**parts, **sizes, "vocabulary": vocabulary, "qk_norm": False, "tied": False})


def xavier_weights(config: GPTConfig, seed: int) -> dict[str, Tensor]:
    """Xavier's initial weights, which keep the variance of activations: branches are as large as the residual path."""
    torch.manual_seed(seed)
    model = config.build()
    initialize(model, nn.init.xavier_uniform_, normal(config.width**-0.5))
    return model.state_dict()


def gradients_by_layer(config: GPTConfig, start: dict[str, Tensor], batch: TextBatch) -> list[float]:
    """The gradient norm of the last matrix of each layer (Xiong et al. 2020, fig. 3)."""
    model = config.build()
    model.load_state_dict(start)
    assert isinstance(model, GPT)
    _cross_entropy(model, batch).backward()
    matrices = [block.feedforward.down.weight for block in model.blocks.layers]
    return [0.0 if matrix.grad is None else matrix.grad.norm().item() for matrix in matrices]


def prediction_changes(
    experiment: Experiment, data: TextData, start: dict[str, Tensor], batch: TextBatch, count: int
) -> list[float]:
    """By update, the mean KL divergence, in nats, of the predictions after it from those before it."""
    engine = Engine(experiment, data, World(device=torch.device("cpu")), start)

    def predictions() -> Tensor:
        with torch.no_grad():
            return F.log_softmax(engine.model(batch.inputs).flatten(0, 1), -1)

    changes, before = [], predictions()
    for _ in range(count):
        if not engine.update().finite:
            break
        after = predictions()
        changes.append(F.kl_div(after, before, reduction="batchmean", log_target=True).item())
        before = after
    return changes


def widest(losses: Losses) -> float:
    """The rate at which losses with and without warm-up differ most; 10 stands for a loss that is not finite."""

    def gap(i: int) -> float:
        found = [min(max(values[i]), 10.0) for values in losses.values()]
        return max(abs(a - b) for a, b in zip(found[::2], found[1::2], strict=True))

    return RATES[max(range(len(RATES)), key=gap)]


def largest(losses: list[list[float]], unigram: float) -> float | None:
    """The largest rate that trains with every seed."""
    able = [rate for rate, found in zip(RATES, losses, strict=True) if max(found) < unigram - LEARNED]
    return max(able, default=None)


def best(losses: list[list[float]]) -> tuple[float, list[float]]:
    """The rate at which the worst seed has the lowest loss, and the losses there."""
    _, rate, found = min(zip(map(max, losses), RATES, losses, strict=True))
    return rate, found


def words(losses: Losses, unigram: float, gradients: Curves, changes: Curves) -> list[str]:
    """The largest rates, the best losses, and the measures at the beginning."""
    sentences = [
        f"A rate, of {', '.join(f'{rate:g}' for rate in RATES)}, trains if the loss at the end is {LEARNED} nats below "
        f"the unigram entropy, {unigram:.3f}, with every seed."
    ]
    for block in BLOCKS:
        (cold, warm) = (losses[name] for name, (of, _) in RUNS.items() if of == block)
        (rate, without), (warm_rate, found) = best(cold), best(warm)
        before, after = (largest(some, unigram) for some in (cold, warm))
        moved = "larger" if (after or 0) > (before or 0) else "smaller" if (after or 0) < (before or 0) else "the same"
        sentences.append(
            f"{block.capitalize()}: the lowest loss is {Mean.of(found)} with warm-up (at {warm_rate:g}), "
            f"{compared(found, without, 'without')} (at {rate:g}). The largest rate that trains is {moved} with "
            f"warm-up: {_rate(after)}, without {_rate(before)}."
        )
    ratios = ", ".join(f"{block} {values[-1] / values[0]:.2g}" for block, values in gradients.items())
    first = ", ".join(f"{name} {max(values):.2g}" for name, values in changes.items() if values)
    return [
        *sentences,
        f"At initialization, the gradient of the last layer over that of the first: {ratios}.",
        f"At the rate {CHANGE_RATE:g}, the largest change of the predictions by one of the first "
        f"{max(map(len, changes.values()))} updates, in nats: {first}.",
        f"± is half the 95% confidence interval over {SEEDS} seeds. One small model and short runs: the limit may be "
        "between two rates that were tried, and a longer training may recover from a bad beginning.",
    ]


def _rate(rate: float | None) -> str:
    return "none of them" if rate is None else f"{rate:g}"


def _cross_entropy(model: GPT, batch: TextBatch) -> Tensor:
    return F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())


def _by_rate(losses: Losses, steps: int, unigram: float) -> ChartSection:
    points = {
        name: [(math.log10(rate), max(x)) for rate, x in zip(RATES, values, strict=True) if math.isfinite(max(x))]
        for name, values in losses.items()
    }
    ends = [(math.log10(rate), unigram) for rate in (RATES[0], RATES[-1])]
    return ChartSection(
        f"Loss after {steps} steps, by learning rate",
        "The mean of the last ten training losses, in nats per character, of the worst seed. The horizontal axis is "
        "the logarithm of the rate: -3 is 0.001. A model at the flat line or above it has not learned from its "
        "context; a missing point is a loss that was not finite.",
        lines({**points, "unigram entropy": ends}),
        Axes("log10 of the learning rate", "loss, nats per character", high=unigram + 1),
    )


def _curves(curves: Curves, rate: float) -> ChartSection:
    points = {
        name: [(float(i), min(x, 10.0)) for i, x in enumerate(values, 1) if math.isfinite(x)]
        for name, values in curves.items()
    }
    return ChartSection(
        f"Training loss at the rate {rate:g}",
        "The rate at which warm-up changes the final loss most. Nats per character.",
        lines(points, marks=False),
        Axes("step", "loss, nats per character", x_low=0, high=6.0),
    )


def _gradients(gradients: Curves) -> ChartSection:
    return ChartSection(
        "Gradients at initialization",
        "The norm of the gradient of the last matrix of each layer's feed-forward network. Post-norm: the layers near "
        "the loss have the largest (Xiong et al. 2020, fig. 3).",
        lines({name: [(float(i), x) for i, x in enumerate(values, 1)] for name, values in gradients.items()}),
        Axes("layer", "gradient norm", low=0),
    )


def _changes(changes: Curves) -> ChartSection:
    return ChartSection(
        f"How far each of the first updates moves the predictions, at the rate {CHANGE_RATE:g}",
        "The mean KL divergence between the predictions before and after an update on held-out text, in nats; "
        "logarithmic. Adam's first updates change every weight by the learning rate, whatever the gradient.",
        lines({name: [(float(i), x) for i, x in enumerate(v, 1) if x > 0] for name, v in changes.items()}, marks=False),
        Axes("step", "KL divergence, nats", log=True, x_low=0),
    )
