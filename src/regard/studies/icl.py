"""In-context learning and induction heads: do they appear together, and in two layers only (Olsson et al. 2022)?"""

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from torch.nn import functional as F

from regard.config import load
from regard.data import TextBatch, TextConfig
from regard.data.base import Data
from regard.look.capture.observe import observe
from regard.look.statistics.measures import heads, random_scores, random_text
from regard.models import GPTConfig
from regard.models.base import LanguageModel
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.parallel.world import World
from regard.studies.page import Study, lines, machine
from regard.train import AdamWConfig, ConstantScheduleConfig, Experiment, TrainConfig
from regard.train.engine import Engine

VOCABULARY, CONTEXT, PERIODS = 64, 64, (8, 32)  # tokens; how long the part is that a text repeats, at least and at most
LAYERS, SEEDS, STEPS, EVERY, BATCH = (1, 2), 2, 800, 20, 32
EARLY, LATE = slice(1, PERIODS[0] - 1), slice(CONTEXT - 16, CONTEXT)  # predicted before and after something repeats
TOGETHER = 2 * EVERY  # steps between two jumps at most
FORMED = 0.5  # the induction score of a head that deserves the name


class Moment(NamedTuple):
    """The measures of one model at one step."""

    step: int
    early: float  # loss at the first positions, nats
    late: float  # loss at the last positions
    induction: float  # the largest induction score of a head
    previous: float  # the largest weight on the previous token of a head of the first layer

    @property
    def in_context(self) -> float:
        """The in-context score: the loss late in the context minus the loss early in it."""
        return self.late - self.early


Runs = dict[int, list[list[Moment]]]  # by number of layers, then by seed


class RepeatedTexts(Data[TextBatch]):
    """Random tokens that repeat; how many until they do differs from row to row, so that no fixed distance helps."""

    vocabulary = VOCABULARY

    def batch(self, step: int, *, seed: int, rank: int = 0, world: int = 1, size: int) -> TextBatch:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        tokens = torch.rand(size * world, VOCABULARY, generator=generator).argsort(1)  # all of a row differ
        low, high = PERIODS
        periods = torch.randint(low, high + 1, (size * world, 1), generator=generator)
        rows = tokens.gather(1, torch.arange(CONTEXT + 1) % periods)[rank::world]
        return TextBatch(rows[:, :-1], rows[:, 1:])

    def validation_batches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[TextBatch]:
        yield self.batch(-1, seed=0, rank=rank, world=world, size=size)


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """Does in-context learning appear with induction heads? The loss late and early in a context, while heads form.

    regard study icl

    Models of one and two layers of attention alone, of width 64, learn random tokens that repeat after 8 to 32 of them,
    for 800 steps with two seeds. Every 20 steps: the loss at the end of the context minus that at its beginning, and
    the induction and previous-token scores of the heads as `regard look` has them. Three minutes on 2 cores.
    """
    steps = max(2 * EVERY, round(STEPS * scale))
    runs: Runs = {}
    for layers in LAYERS:
        runs[layers] = [observed(layers, seed + number, steps) for number in range(SEEDS)]
        for run in runs[layers]:
            say(f"{layers} layers: in-context score {run[-1].in_context:.2f}, induction {run[-1].induction:.2f}")
    return Study(
        words(runs),
        _charts(runs),
        {"runs": {layers: [[one._asdict() for one in run] for run in found] for layers, found in runs.items()}},
        f"attention only, width 64, 4 heads, rotary positions, {VOCABULARY} tokens, context {CONTEXT}, batch {BATCH}, "
        f"{steps} steps of AdamW, seeds {seed} to {seed + SEEDS - 1}, {machine()}",
    )


def observed(layers: int, seed: int, steps: int) -> list[Moment]:
    """Train a model of attention alone, and measure it on the way."""
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT, "width": 64, "heads": 4, "layers": layers}
    config = load(GPTConfig, {**sizes, "feedforward": "none", "tied": False})
    train = TrainConfig(steps, optimizer=AdamWConfig(lr=2e-3), schedule=ConstantScheduleConfig(), device="cpu")
    data = RepeatedTexts()
    engine = Engine(
        Experiment(config, TextConfig(batch=BATCH), train=train, seed=seed), data, World(device=torch.device("cpu"))
    )
    assert isinstance(engine.model, LanguageModel)
    found = [moment(engine.model, 0)]
    for step in range(1, steps + 1):
        engine.update()
        if step % EVERY == 0:
            found.append(moment(engine.model, step))
    return found


@torch.no_grad()
def moment(model: LanguageModel, step: int) -> Moment:
    """The measures on held-out texts."""
    model.eval()
    (batch,) = RepeatedTexts().validation_batches(128)
    losses = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten(), reduction="none")
    position = losses.view(batch.targets.shape).mean(0)
    text = random_text(VOCABULARY, CONTEXT)
    assert text is not None
    seen, _ = observe(model, lambda: model.features(text))
    model.train()
    induction = max(head["induction"] for layer in seen for head in random_scores(layer))
    previous = max(head.previous for head in heads(seen[:1]))
    return Moment(step, position[EARLY].mean().item(), position[LATE].mean().item(), induction, previous)


def half(values: Sequence[float], steps: Sequence[int]) -> int:
    """The first step at which a measure is past the middle between its first and its last value."""
    middle = (values[0] + values[-1]) / 2
    rises = values[-1] > values[0]
    return next(step for step, value in zip(steps, values, strict=True) if (value >= middle) == rises)


def jumps(run: list[Moment]) -> tuple[int, int]:
    """The steps at which the induction score and the in-context score are half-way."""
    steps = [one.step for one in run]
    return half([one.induction for one in run], steps), half([one.in_context for one in run], steps)


def unordered() -> float:
    """The in-context score of one who chooses among the tokens seen so far: mean of log(period), minus log(V)."""
    low, high = PERIODS
    return fmean(math.log(period / VOCABULARY) for period in range(low, high + 1))


def words(runs: Runs) -> list[str]:
    """The scores at the end, whether the heads formed, and whether both measures changed together."""
    said = []
    for layers, found in runs.items():
        ends = ", ".join(
            f"{run[-1].in_context:.2f}, {run[-1].induction:.2f} and {run[-1].previous:.2f}" for run in found
        )
        said.append(
            f"{'One layer' if layers == 1 else 'Two layers'}: in-context score in nats, largest induction score and "
            f"largest previous-token score in the end, by seed: {ends}."
        )
    one, two = runs[LAYERS[0]], runs[LAYERS[-1]]
    formed = [run for run in two if run[-1].induction >= FORMED]
    if len(formed) < len(two):
        said.append(f"{len(formed)} of {len(two)} models of two layers have a head with a score of {FORMED} or more.")
    if formed:
        pairs = [jumps(run) for run in formed]
        together = all(abs(a - b) <= TOGETHER for a, b in pairs)
        listed = ", ".join(f"{a} and {b}" for a, b in pairs)
        said.append(
            f"In two layers the induction score and the in-context score are half-way to their last values at steps "
            f"{listed}: {'they change together' if together else 'they do not change together'} (measured every "
            f"{EVERY} steps; together: at most {TOGETHER} apart)."
        )
    without = all(run[-1].induction < FORMED for run in one)
    gap = max(run[-1].in_context for run in two) < min(run[-1].in_context for run in one)
    said.append(
        f"One layer {'never has' if without else 'also has'} an induction head, and two layers "
        f"{'learn more from the context with every seed' if gap else 'do not learn more from the context'}."
    )
    said.append(
        f"Knowing which tokens the context has, and not their order, is worth about {unordered():.2f}. What changes "
        "together need not cause one another, and these texts, unlike Olsson's, can be predicted by induction alone. "
        "Small models, two seeds."
    )
    return said


def _charts(runs: Runs) -> list[ChartSection]:
    def curves(measure: Callable[[Moment], float]) -> dict[str, list[tuple[float, float]]]:
        return {
            f"{layers} layer{'s' * (layers > 1)}, seed {number}": [(float(one.step), measure(one)) for one in run]
            for layers, found in runs.items()
            for number, run in enumerate(found, 1)
        }

    return [
        ChartSection(
            "In-context score",
            f"The mean loss of the last {LATE.stop - LATE.start} positions minus that of the first ones, before "
            "anything repeats, on held-out texts; nats.",
            lines(curves(lambda one: one.in_context), marks=False),
            Axes("step", "late minus early loss, nats", x_low=0),
        ),
        ChartSection(
            "Induction score",
            "On a repeated random text, the weight on the token that followed the same token before; the largest of "
            "all heads.",
            lines(curves(lambda one: one.induction), marks=False),
            Axes("step", "weight", low=0, high=1, x_low=0),
        ),
        ChartSection(
            "Previous-token score",
            "The weight on the token before; the largest of the heads of the first layer. An induction head finds the "
            "token after an earlier one by what such heads have written there.",
            lines(curves(lambda one: one.previous), marks=False),
            Axes("step", "weight", low=0, high=1, x_low=0),
        ),
    ]
