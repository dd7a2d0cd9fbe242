"""Queries, keys and values from shared matrices: Q = K, K = V and Q = K = V against three matrices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from torch import Tensor

from regard.attention import Mechanism
from regard.data import Data, TextBatch, TextConfig
from regard.look.capture.observe import Attention, attentions
from regard.look.statistics.measures import heads
from regard.measure.interval import Mean, difference
from regard.models import GPTConfig
from regard.nn.attention import AttentionSizes, ProjectionConfig, SelfAttention
from regard.nn.feedforward import ReLUSquaredConfig
from regard.nn.positions.position import Rotation
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.page import Study, machine
from regard.studies.short_training import held_out, train_shortly
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig

LAYERS, WIDTH, CONTEXT, RATIO = 3, 64, 64, 4.0
STEPS, SEEDS = 300, 4
DATA = TextConfig(batch=16)
EVEN = fmean(1 / keys for keys in range(2, CONTEXT + 1))  # weight on itself of a token that attends to all alike
SEPARATE, WIDTHS, PARAMETERS = "separate", "equal width", "equal parameters"
#: The matrices of queries, keys and values, by their numbers.
TIES: dict[str, tuple[int, int, int]] = {
    SEPARATE: (0, 1, 2),
    "Q = K": (0, 0, 1),
    "K = V": (0, 1, 1),
    "Q = K = V": (0, 0, 0),
}


class TiedSelfAttention(SelfAttention):
    """Queries, keys and values are the products with the matrices of these numbers."""

    def __init__(self, sizes: AttentionSizes, mechanism: Mechanism, matrices: tuple[int, int, int]):
        self.matrices = matrices
        super().__init__(sizes, mechanism)

    def _parts(self) -> tuple[int, ...]:
        return (self.heads * self.head_width,) * len(set(self.matrices))

    def _split(self, heads: Tensor, rotation: Rotation) -> tuple[Tensor, ...]:
        """Values are not rotated, also where they are the keys."""
        products = heads.split(self.heads, dim=2)
        q, k, v = (products[number] for number in self.matrices)
        return rotation.apply(self.norm_qk(q)), rotation.apply(self.norm_qk(k)), v


@dataclass(frozen=True)
class TiedConfig(ProjectionConfig):
    """Without a kind, so that this study alone has it."""

    matrices: tuple[int, int, int] = TIES[SEPARATE]

    def build(self, sizes: AttentionSizes, mechanism: Mechanism) -> SelfAttention:
        return TiedSelfAttention(sizes, mechanism, self.matrices)


class TiedModel(NamedTuple):
    """One kind of projection, a value for each seed."""

    parameters: int
    losses: list[float]
    asymmetry: float  # of the scores, the mean over seeds and layers
    own: float  # weight of a token on itself, the mean over seeds and heads


Found = dict[str, dict[str, TiedModel]]  # by what is equal, then by tie


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """Does attention need three projections? Q = K, K = V and Q = K = V against separate matrices.

    regard study projections

    Character models of Shakespeare with 3 layers of width 64, 300 steps, four seeds: the loss at equal width, where
    shared matrices save parameters, and at equal parameters, where the feed-forward networks are wider instead; the
    symmetry of the scores, and the weight of a token on itself. Four minutes on one core.
    """
    steps = max(2, round(STEPS * scale))
    data = DATA.build(CONTEXT)
    found: Found = {WIDTHS: {}, PARAMETERS: {}}
    for tie in TIES:
        for equal in found:
            if tie == SEPARATE and equal == PARAMETERS:
                found[equal][tie] = found[WIDTHS][tie]  # the same model
                continue
            config = model_config(tie, equal, data.vocabulary)
            found[equal][tie] = trained(config, data, steps, seed)
            say(f"{tie}, {equal}: loss {Mean.of(found[equal][tie].losses)}")
    return Study(
        words(found),
        [chart(equal, by_tie, steps) for equal, by_tie in found.items()],
        {equal: {tie: one._asdict() for tie, one in by_tie.items()} for equal, by_tie in found.items()},
        f"{LAYERS} layers, width {WIDTH}, 4 heads, context {CONTEXT}, batch {DATA.batch}, {steps} steps, AdamW, rotary "
        f"positions, seeds {seed} to {seed + SEEDS - 1}, {machine()}",
    )


def model_config(tie: str, equal: str, vocabulary: int) -> GPTConfig:
    """A saved matrix of C² weights makes room for C/2 more hidden units of 2C weights each."""
    saved = 3 - len(set(TIES[tie]))
    ratio = RATIO + (saved / 2 if equal == PARAMETERS else 0)
    return GPTConfig(
        vocabulary=vocabulary,
        context=CONTEXT,
        width=WIDTH,
        layers=LAYERS,
        qk_norm=False,
        projection=TiedConfig(matrices=TIES[tie]),
        feedforward=ReLUSquaredConfig(ratio),
    )


def trained(config: GPTConfig, data: Data[TextBatch], steps: int, seed: int) -> TiedModel:
    """Validation losses, and measures of the trained models on a part of the same text."""
    train = TrainConfig(steps, optimizer=AdamWConfig(), schedule=CosineScheduleConfig(warmup=0.05), device="cpu")
    batches, losses, asymmetries, own, count = held_out(data, 64, 8), [], [], [], 0
    for n in range(SEEDS):
        run = train_shortly(Experiment(config, DATA, train=train, seed=seed + n), data)
        losses.append(run.validation_loss(batches))
        seen = attentions(run.model, lambda model=run.model: model.features(batches[0].inputs[:8]))
        asymmetries += map(asymmetry, seen)
        own += [head.own for head in heads(seen)]
        count = sum(parameter.numel() for parameter in run.model.parameters())
    return TiedModel(count, losses, fmean(asymmetries), fmean(own))


def asymmetry(attention: Attention) -> float:
    """|S - Sᵀ| / |S + Sᵀ| of the scores S = Q Kᵀ before the mask: 0 if they are symmetric, near 1 if unrelated."""
    scores = attention.q @ attention.k.mT
    return ((scores - scores.mT).norm() / (scores + scores.mT).norm()).item()


def words(found: Found) -> list[str]:
    """What each tie costs, and what it does to the scores."""
    separate = found[WIDTHS][SEPARATE]
    sentences = [
        f"Three matrices: {Mean.of(separate.losses)} nats per character with {separate.parameters:,} parameters."
    ]
    for tie in list(TIES)[1:]:
        costs = []
        for equal, by_tie in found.items():
            cost = difference(by_tie[tie].losses, separate.losses)
            costs.append(f"{cost.value:+.3f} ± {cost.error:.3f} at {equal}, {verdict(cost)}")
        sentences.append(f"{tie} ({found[WIDTHS][tie].parameters:,} parameters at equal width): {'; '.join(costs)}.")
    scores = ", ".join(f"{tie} {one.asymmetry:.2g}" for tie, one in found[WIDTHS].items())
    own = ", ".join(f"{tie} {one.own:.2f}" for tie, one in found[WIDTHS].items())
    return [
        *sentences,
        f"With Q = K the scores are symmetric before the mask, also with rotary positions: token i scores j as "
        f"j scores i. Only the mask and the softmax of each row then give attention a direction. Asymmetry: {scores}.",
        f"A token scores itself by its squared length then. Mean weight of a token on itself: {own}. Weights "
        f"that are all equal give {EVEN:.2f}; a model near that has hardly learned to attend.",
        f"± is half the 95% confidence interval over {len(separate.losses)} pairs of equal seeds. Small models, short "
        "training and one text: what a tie costs at other sizes, or on a task that must look up a value by a different "
        "key, is not measured here.",
    ]


def verdict(cost: Mean) -> str:
    """What an interval says about a difference of losses."""
    if cost.value - cost.error > 0:
        return "worse"
    return "better" if cost.value + cost.error < 0 else "no difference found"


def chart(equal: str, found: Mapping[str, TiedModel], steps: int) -> ChartSection:
    """Mean losses, and a table with every seed."""
    rows = [
        (tie, f"{one.parameters:,}", *(f"{loss:.4f}" for loss in one.losses), f"{one.asymmetry:.3f}", f"{one.own:.3f}")
        for tie, one in found.items()
    ]
    seeds = [f"loss, seed {n + 1}" for n in range(SEEDS)]
    return ChartSection(
        f"Validation loss after {steps} steps, {equal}",
        "Nats per character, the mean over the seeds; the faint line is three separate matrices. "
        + ("Shared matrices save parameters." if equal == WIDTHS else "The feed-forward networks are wider instead."),
        [],
        Axes("", "validation loss, nats per character"),
        named=[(tie, fmean(one.losses)) for tie, one in found.items()],
        line=fmean(found[SEPARATE].losses),
        columns=("projections", "parameters", *seeds, "asymmetry", "weight on itself"),
        rows=rows,
    )
