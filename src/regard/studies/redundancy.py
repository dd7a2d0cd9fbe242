"""Attention heads removed one by one from a trained model (Michel et al. 2019)."""

from collections.abc import Callable, Sequence
from random import Random
from statistics import fmean
from typing import NamedTuple

from regard.compress.measure import loss_of
from regard.data import TextBatch, TextConfig
from regard.look.capture.observe import attentions
from regard.look.interventions.ablate import ablated
from regard.measure.interval import Mean, difference
from regard.models import GPTConfig
from regard.models.base import LanguageModel
from regard.pages.charts import Axes, Series
from regard.pages.html import ChartSection
from regard.studies.page import Study, machine
from regard.studies.short_training import held_out, train_shortly
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig

LAYERS, HEADS, WIDTH, CONTEXT = 3, 8, 64, 64
STEPS, SEEDS, ORDERS = 1000, 3, 10
TOLERANCE = 0.05  # nats per character by which the loss may rise
SMALL = 0.01  # nats: a head with less effect hardly matters by itself
GREEDY, SINGLE, RANDOM = "measured again after each removal", "measured once", "random order"
Head = tuple[int, int]  # layer and head, from 0
Loss = Callable[[Sequence[Head]], float]  # without these heads


class Removals(NamedTuple):
    """What the heads of one model are worth."""

    effects: dict[Head, float]  # of each head alone, in nats
    curves: dict[str, list[list[float]]]  # by order of removal: the losses without 0, 1, 2 ... heads; random: several

    @property
    def whole(self) -> float:
        """The loss with all heads."""
        return self.curves[GREEDY][0][0]

    @property
    def all_heads(self) -> float:
        """The effect of removing all of them."""
        return self.curves[GREEDY][0][-1] - self.whole


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """Are all attention heads needed? Heads removed one by one, by measured effect and in random order.

    regard study redundancy

    Three character models of Shakespeare with 3 layers of 8 heads, trained for 1,000 steps: the effect of each head
    alone on the loss, then the loss against the number of removed heads, without further training. Effects are measured
    on one half of the held-out text, losses are reported on the other. Four minutes on one core.
    """
    steps = max(2, round(STEPS * scale))
    data_config = TextConfig(batch=16)
    data = data_config.build(CONTEXT)
    batches = held_out(data, 64, 4)
    config = GPTConfig(vocabulary=data.vocabulary, context=CONTEXT, width=WIDTH, heads=HEADS, layers=LAYERS)
    train = TrainConfig(steps, optimizer=AdamWConfig(), schedule=CosineScheduleConfig(warmup=0.05), device="cpu")
    found: list[Removals] = []
    for n in range(SEEDS):
        model = train_shortly(Experiment(config, data_config, train=train, seed=seed + n), data).model
        found.append(remove_heads(model, batches[:2], batches[2:], seed + n))
        say(f"seed {seed + n}: loss {found[-1].whole:.3f}, without any head {found[-1].all_heads:+.3f}")
    return Study(
        words(found),
        [_curves(found), _effects(found, seed)],
        {
            "effects": [{name(head): effect for head, effect in one.effects.items()} for one in found],
            "losses": [one.curves for one in found],
        },
        f"{LAYERS} layers of {HEADS} heads, width {WIDTH}, context {CONTEXT}, batch 16, {steps} steps, AdamW, "
        f"{2 * 64 * CONTEXT:,} characters to measure effects and as many for the losses, {ORDERS} random orders, seeds "
        f"{seed} to {seed + SEEDS - 1}, {machine()}",
    )


def remove_heads(
    model: LanguageModel, chosen_by: Sequence[TextBatch], reported: Sequence[TextBatch], seed: int
) -> Removals:
    """Effects on the batches ``chosen_by``; losses of all orders of removal on the batches ``reported``."""
    layers = attentions(model, lambda: model.features(reported[0].inputs[:1]))
    heads = [(layer, head) for layer, one in enumerate(layers) for head in range(one.heads)]

    def without(batches: Sequence[TextBatch]) -> Loss:
        def loss(removed: Sequence[Head]) -> float:
            with ablated(model, layers, removed):
                return loss_of(model, batches)

        return loss

    measured, draw = without(chosen_by), Random(seed)
    base = measured([])
    effects = {head: measured([head]) - base for head in heads}
    orders = {
        GREEDY: [greedy(measured, heads)],
        SINGLE: [sorted(heads, key=effects.__getitem__)],
        RANDOM: [draw.sample(heads, len(heads)) for _ in range(ORDERS)],
    }
    return Removals(effects, {how: [losses(without(reported), one) for one in some] for how, some in orders.items()})


def greedy(loss: Loss, heads: Sequence[Head]) -> list[Head]:
    """All heads in order of removal: each time the head without which the loss is lowest."""
    removed: list[Head] = []
    while left := [head for head in heads if head not in removed]:
        removed.append(min(left, key=lambda head: loss([*removed, head])))
    return removed


def losses(loss: Loss, order: Sequence[Head]) -> list[float]:
    """The losses without the first 0, 1, 2 ... heads of an order."""
    return [loss(order[:count]) for count in range(len(order) + 1)]


def removable(curve: Sequence[float]) -> int:
    """How many heads are removed before the loss first rises by more than the tolerance."""
    above = (count for count, loss in enumerate(curve) if loss - curve[0] > TOLERANCE)
    return next(above, len(curve)) - 1


def name(head: Head) -> str:
    """Layer and head, counted from 1, as elsewhere."""
    return f"{head[0] + 1}.{head[1] + 1}"


def words(found: Sequence[Removals]) -> list[str]:
    """How many heads can go, and what a head alone says about it."""
    heads = len(found[0].effects)
    counts = {how: [fmean(map(removable, one.curves[how])) for one in found] for how in (GREEDY, SINGLE, RANDOM)}
    listed = ", ".join(f"{how} {_counted(Mean.of(values))}" for how, values in counts.items())
    fewest, most = min(counts[GREEDY]), max(counts[RANDOM])
    small = fmean(sum(effect < SMALL for effect in one.effects.values()) for one in found)
    largest = max((effect, name(head), n) for n, one in enumerate(found, 1) for head, effect in one.effects.items())
    sums, together = [sum(one.effects.values()) for one in found], [one.all_heads for one in found]
    missing = difference(together, sums)
    return [
        f"Heads that can be removed, of {heads}, before the loss rises by {TOLERANCE} nats: {listed}. "
        + (
            "In every model, removal by measured effect keeps the loss longer than random orders do on average."
            if fewest > most
            else "Not in every model does removal by measured effect keep the loss longer than random orders do."
        ),
        f"By themselves, {small:.1f} heads of {heads} change the loss by less than {SMALL} nats; the largest effect is "
        f"{largest[0]:.3f} (head {largest[1]} of model {largest[2]}).",
        f"The effects of single heads add up to {Mean.of(sums)} nats, and removing all heads costs "
        f"{Mean.of(together)}. "
        + (
            "The sum is smaller: heads stand in for each other, and an effect measured alone understates them."
            if missing.value > missing.error
            else "The difference is within the interval: heads are not shown to stand in for each other."
        ),
        f"± is half the 95% confidence interval over {len(found)} models. The models are small and are not trained "
        "again after a removal, which would recover a part of the loss. An effect is that on this text: a head that "
        "is idle here may matter elsewhere.",
    ]


def _counted(mean: Mean) -> str:
    return f"{mean.value:.1f} ± {mean.error:.1f}"


def _curves(found: Sequence[Removals]) -> ChartSection:
    series, rows = [], []
    for color, how in enumerate((GREEDY, SINGLE, RANDOM)):
        values = list(zip(*(curve for one in found for curve in one.curves[how]), strict=True))
        means = [(float(count), fmean(some)) for count, some in enumerate(values)]
        band = [(float(count), min(some), max(some)) for count, some in enumerate(values)]
        series.append(Series(how, means, color, marks=True, band=band))
    for count in range(len(series[0].points)):
        rows.append((str(count), *(f"{one.points[count][1]:.3f}" for one in series)))
    return ChartSection(
        "Loss by the number of removed heads",
        "Nats per character on text that chose no head; the mean over the models, and over random orders. The bands "
        "reach from the lowest to the highest. The order is that of the effects on other text: measured once with all "
        "other heads present, or again after each removal.",
        series,
        Axes("removed heads", "loss, nats per character", x_low=0),
        columns=("removed heads", *(one.name for one in series)),
        rows=rows,
    )


def _effects(found: Sequence[Removals], seed: int) -> ChartSection:
    first = sorted(found[0].effects.items(), key=lambda one: -one[1])
    rows = [(name(head), *(f"{one.effects[head]:+.4f}" for one in found)) for head in found[0].effects]
    return ChartSection(
        f"The effect of each head alone, seed {seed}",
        "The rise of the loss in nats per character without this head; layer and head are counted from 1. The numbers "
        "are those of every model.",
        [],
        Axes("", "rise of the loss, nats per character"),
        named=[(name(head), effect) for head, effect in first],
        line=0.0,
        columns=("head", *(f"seed {seed + n}" for n in range(len(found)))),
        rows=rows,
    )
