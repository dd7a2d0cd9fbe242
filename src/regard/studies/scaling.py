"""Dot products divided by the root of their width: what the softmax becomes without it (Vaswani et al. 2017, 3.2.1)."""

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention import Softmax, SoftmaxConfig, attend
from regard.data import TextBatch, TextConfig
from regard.look.capture.observe import attentions, dense_weights, evaluation_mode
from regard.measure.interval import Mean
from regard.models import GPTConfig
from regard.models.base import LanguageModel
from regard.models.gpt import GPT
from regard.nn.attention import SeparateConfig
from regard.nn.init import normal
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.depth import format_loss
from regard.studies.page import Study, lines, machine
from regard.studies.short_training import compared, held_out, train_shortly
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig

KEYS, ROWS = 64, 256  # keys of a query, and queries that are averaged
WIDTHS = tuple(4**n for n in range(1, 7))  # of a head, at initialization
DEVIATIONS = tuple(2.0**n for n in range(-3, 4))  # of the entries of q and k
MIDDLE = 64  # width of a head where deviations vary
TRAINED, STEPS, SEEDS = (16, 64, 256), 400, 3
UNSCALED, SCALED, NORMALIZED = "q·k", "q·k / √d", "normalized q·k / √d"
KINDS = (UNSCALED, SCALED, NORMALIZED)
COLUMNS = ("kind", "width of a head", "variance of the scores", "entropy", "gradient")


class ScoreStatistics(NamedTuple):
    """Means over queries: the variance of the scores, the entropy of their softmax, and the size of its Jacobian."""

    variance: float
    entropy: float  # nats
    gradient: float  # Frobenius norm of dp/ds


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """Why divide dot products by the root of the head width? Softmax entropy, gradient and loss with and without.

    regard study scaling

    At initialization, queries and keys of independent entries of variance 1, so that a dot product has the variance d:
    the entropy of the softmax over 64 keys and the norm of its Jacobian for heads of width 4 to 4,096. Then character
    models of Shakespeare with heads of width 16, 64 and 256, whose queries and keys begin with variance 1, trained for
    400 steps with three seeds. Four to six minutes on one core.
    """
    generator = torch.Generator().manual_seed(seed)
    at_start = {kind: {d: random_scores(kind, d, 1.0, generator) for d in WIDTHS} for kind in KINDS}
    by_deviation = {kind: {x: random_scores(kind, MIDDLE, x, generator) for x in DEVIATIONS} for kind in KINDS}
    say("random queries and keys: done")
    steps = max(2, round(STEPS * scale))
    losses: dict[str, dict[int, list[float]]] = {kind: {} for kind in KINDS}
    entropies: dict[str, dict[int, float]] = {kind: {} for kind in KINDS}
    for kind in KINDS:
        for width in TRAINED:
            found = [trained(kind, width, steps, seed + n) for n in range(SEEDS)]
            losses[kind][width] = [loss for loss, _ in found]
            entropies[kind][width] = fmean(entropy for _, entropy in found)
            say(f"{kind}, heads of width {width}: loss {', '.join(map(format_loss, losses[kind][width]))}")
    return Study(
        words(at_start, losses),
        [
            _chart("Softmax entropy by head width", "entropy", at_start),
            _chart("Gradient of the softmax by head width", "gradient", at_start),
            _by_deviation(by_deviation),
            _losses(losses, entropies, steps),
        ],
        {
            "at_start": {k: {d: one._asdict() for d, one in v.items()} for k, v in at_start.items()},
            "by_deviation": {k: {d: one._asdict() for d, one in v.items()} for k, v in by_deviation.items()},
            "losses": {k: {d: [*map(format_loss, x)] for d, x in v.items()} for k, v in losses.items()},
            "trained_entropy": entropies,
        },
        f"{KEYS} keys, {ROWS} queries; models: 2 layers, width 64, 2 heads, context 64, batch 16, {steps} steps, "
        f"AdamW, seeds {seed} to {seed + SEEDS - 1}, {machine()}",
    )


def random_scores(kind: str, width: int, deviation: float, generator: torch.Generator) -> ScoreStatistics:
    """Statistics for queries and keys of independent normal entries."""
    q, k = (deviation * torch.randn(ROWS, n, width, generator=generator) for n in (1, KEYS))
    if kind == NORMALIZED:
        q, k = (F.rms_norm(x, (width,)) for x in (q, k))
    mechanism = Softmax(scale=1.0 if kind == UNSCALED else None)
    scores = (q @ k.mT) * (1.0 if kind == UNSCALED else width**-0.5)
    weights = attend(q[:, None], k[:, None], k[:, None], mechanism=mechanism, weights=True).weights
    assert weights is not None  # they were asked for
    p = weights.flatten(0, 2).double()
    return ScoreStatistics(scores.var(-1).mean().item(), entropy(p), jacobian_norm(p))


def entropy(weights: Tensor) -> float:
    """The mean entropy of rows of weights, in nats."""
    return -torch.special.xlogy(weights, weights).sum(-1).mean().item()


def jacobian_norm(weights: Tensor) -> float:
    """The mean Frobenius norm of dp/ds = diag(p) - p pᵀ for rows p = softmax(s)."""
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    return jacobian.norm(dim=(-2, -1)).mean().item()


def trained(kind: str, head_width: int, steps: int, seed: int) -> tuple[float, float]:
    """The validation loss after training, and the mean entropy of the weights over all heads and positions."""
    data_config = TextConfig(batch=16)
    data = data_config.build(64)
    attention = SoftmaxConfig(scale=1.0 if kind == UNSCALED else None)
    config = GPTConfig(vocabulary=data.vocabulary, context=64, width=64, heads=2, layers=2, zero_init=False)
    config = replace(config, projection=SeparateConfig(head_width), attention=attention, qk_norm=kind == NORMALIZED)
    train = TrainConfig(steps, optimizer=AdamWConfig(), schedule=CosineScheduleConfig(), device="cpu")
    torch.manual_seed(seed)
    model = config.build()
    assert isinstance(model, GPT)
    for block in model.blocks.layers:
        block.attention.qkv.init(normal(config.width**-0.5))  # inputs of variance 1 to queries and keys of variance 1
    run = train_shortly(Experiment(config, data_config, train=train, seed=seed), data, model.state_dict())
    batches = held_out(data, 64, 8)
    return run.validation_loss(batches), attention_entropy(run.model, batches[0])


def attention_entropy(model: LanguageModel, batch: TextBatch) -> float:
    """The mean entropy of the attention weights, over layers, heads and queries."""
    with evaluation_mode(model):
        return fmean(
            entropy(dense_weights(one).flatten(0, 2)) for one in attentions(model, lambda: model(batch.inputs))
        )


def words(at_start: dict[str, dict[int, ScoreStatistics]], losses: dict[str, dict[int, list[float]]]) -> list[str]:
    """What the width does to the softmax, and to the loss."""
    first, last = WIDTHS[0], WIDTHS[-1]
    sentences = [
        f"{kind}: from width {first} to {last:,} the variance of the scores goes from {found[first].variance:.3g} to "
        f"{found[last].variance:.3g}, the entropy from {found[first].entropy:.2f} to {found[last].entropy:.2f} nats "
        f"(uniform: {math.log(KEYS):.2f}), and the gradient from {found[first].gradient:.2g} to "
        f"{found[last].gradient:.2g}."
        for kind, found in at_start.items()
    ]
    for width in TRAINED:
        listed = ", ".join(f"{kind} {Mean.of(found[width])}" for kind, found in losses.items())
        cost = compared(losses[UNSCALED][width], losses[SCALED][width], "with it")
        sentences.append(f"Validation loss with heads of width {width}: {listed}. Without the division it is {cost}.")
    return [
        *sentences,
        "± is half the 95% confidence interval over the seeds, of differences over pairs of equal seeds.",
        "The variance is d only for entries that are independent and of variance 1. A model may begin with smaller "
        "queries and keys, where an unscaled product does less harm, and training changes them in any case.",
    ]


def _chart(title: str, measure: str, found: dict[str, dict[int, ScoreStatistics]]) -> ChartSection:
    points = {k: [(math.log2(d), one._asdict()[measure]) for d, one in v.items()] for k, v in found.items()}
    about = {
        "entropy": f"The mean entropy of the softmax over {KEYS} random keys, in nats; uniform weights have "
        f"{math.log(KEYS):.2f}, one key alone has 0.",
        "gradient": "The mean Frobenius norm of the derivatives of the weights by the scores. At 0 nothing is learned "
        "through the scores.",
    }[measure]
    rows = [
        (kind, f"{d:,}", f"{one.variance:.3g}", f"{one.entropy:.3f}", f"{one.gradient:.3g}")
        for kind, by_width in found.items()
        for d, one in by_width.items()
    ]
    about += " The horizontal axis is the binary logarithm of the width: 6 is a head of width 64."
    axes = Axes("log2 of the head width", "entropy, nats" if measure == "entropy" else "norm of dp/ds", low=0)
    return ChartSection(title, about, lines(points), axes, columns=COLUMNS, rows=rows)


def _by_deviation(found: dict[str, dict[float, ScoreStatistics]]) -> ChartSection:
    return ChartSection(
        f"Softmax entropy by the size of queries and keys, heads of width {MIDDLE}",
        "The same when the entries of queries and keys have another standard deviation, as they do once training has "
        "changed the weights. Dividing by √d assumes a deviation of 1; normalized vectors do not depend on it.",
        lines({k: [(math.log2(x), one.entropy) for x, one in v.items()] for k, v in found.items()}),
        Axes("log2 of the standard deviation", "entropy, nats", low=0),
    )


def _losses(
    losses: dict[str, dict[int, list[float]]], entropies: dict[str, dict[int, float]], steps: int
) -> ChartSection:
    points = {k: [(math.log2(d), fmean(x)) for d, x in v.items() if math.isfinite(fmean(x))] for k, v in losses.items()}
    rows = [
        (kind, str(d), *map(format_loss, found), f"{entropies[kind][d]:.3f}")
        for kind, by_width in losses.items()
        for d, found in by_width.items()
    ]
    seeds = [f"loss, seed {n + 1}" for n in range(SEEDS)]
    return ChartSection(
        f"Validation loss after {steps} steps, by head width",
        "Nats per character, mean over the seeds. The horizontal axis is the binary logarithm of the width.",
        lines(points),
        Axes("log2 of the head width", "validation loss, nats per character"),
        columns=("kind", "width of a head", *seeds, "attention entropy"),
        rows=rows,
    )
