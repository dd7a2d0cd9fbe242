"""Attention within a window: how far back information comes through several layers."""

from collections.abc import Callable, Mapping
from random import Random
from statistics import fmean
from typing import NamedTuple

import torch

from regard.attention import SoftmaxConfig, WindowConfig
from regard.data import TextConfig
from regard.data.synthetic.data import SyntheticConfig, SyntheticData
from regard.data.synthetic.problems import PROBLEMS, SEPARATOR
from regard.look.capture.observe import evaluation_mode
from regard.models import GPTConfig
from regard.models.base import LanguageModel
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.page import Study, lines, machine
from regard.studies.short_training import held_out, train_shortly
from regard.train import AdamWConfig, CosineScheduleConfig, Experiment, TrainConfig

WIDTH, WINDOWS, LAYERS = 32, (3, 5, 9), (1, 2, 4)
SIZE, STEPS, PROBES = 24, 400, 2000
TEXT_WINDOWS, TEXT_LAYERS, TEXT_STEPS, CONTEXT = (2, 4, 16), (1, 4), 300, 64
EVERYTHING = 0  # in the place of a window
NEEDLE = SyntheticConfig(problem="needle", size=SIZE, longer=(1,), batch=64)
TEXT = TextConfig(batch=16)
FOUND, CHANCE = 0.5, 0.1  # accuracies: of a needle that is found, and of a guessed digit
TOLERANCE = 0.05  # above chance
NEAR_FULL = 0.02  # nats
Size = tuple[int, int]  # window and layers
ByDistance = dict[int, float]


class Reached(NamedTuple):
    """How far one model reads."""

    bound: int  # layers · (window - 1)
    within: float  # mean accuracy at distances up to the bound
    beyond: float  # and above it; the chance if there are none
    farthest: int  # the largest distance up to which needles are found at every distance; 0: none


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """What does a window lose of long-range information? Accuracy by distance, and loss, by window and layers.

    regard study window

    Models of width 32 find a digit among 24 letters with windows of 3, 5 and 9 tokens in 1, 2 and 4 layers: the
    accuracy by the digit's distance against the receptive field, layers · (window - 1). Then character models of
    Shakespeare: the loss by window and layers. Two minutes on one core.
    """
    accuracies = needle_accuracies(scale, seed, say)
    reached = {size: reach(size, found) for size, found in accuracies.items()}
    losses = text_losses(scale, seed, say)
    return Study(
        words(reached, losses),
        [
            *(_by_distance(window, accuracies, reached) for window in WINDOWS),
            _by_window(losses),
        ],
        {
            "accuracy": {_name(size): found for size, found in accuracies.items()},
            "reach": {_name(size): one._asdict() for size, one in reached.items()},
            "losses": {_name(size): loss for size, loss in losses.items()},
        },
        f"width {WIDTH}, 4 heads, AdamW; a digit in {SIZE} letters, batch {NEEDLE.batch}, "
        f"{max(2, round(STEPS * scale))} steps, {PROBES:,} problems; text: context {CONTEXT}, batch {TEXT.batch}, "
        f"{max(2, round(TEXT_STEPS * scale))} steps; seed {seed}, {machine()}",
    )


def model_config(size: Size, vocabulary: int, context: int) -> GPTConfig:
    """A model with this window, or without one, in every layer."""
    window, layers = size
    attention = SoftmaxConfig() if window == EVERYTHING else WindowConfig(window)
    return GPTConfig(vocabulary=vocabulary, context=context, width=WIDTH, layers=layers, attention=attention)


def needle_accuracies(scale: float, seed: int, say: Callable[[str], None]) -> dict[Size, ByDistance]:
    """The accuracies by distance, by window and layers."""
    context = SIZE + 8  # "#", the digit, ">", the answer and the end, in whole steps of length
    data, train = NEEDLE.build(context), _training(STEPS, scale, 3e-3)
    found: dict[Size, ByDistance] = {}
    for size in ((window, layers) for window in WINDOWS for layers in LAYERS):
        experiment = Experiment(model_config(size, data.tokenizer.size, context), NEEDLE, train=train, seed=seed)
        found[size] = accuracy(train_shortly(experiment, data).model, data)
        say(f"needle, {_name(size)}: {reach(size, found[size])}")
    return found


def text_losses(scale: float, seed: int, say: Callable[[str], None]) -> dict[Size, float]:
    """The validation losses of character models by window and layers."""
    data, train = TEXT.build(CONTEXT), _training(TEXT_STEPS, scale, 1e-3)
    batches, losses = held_out(data, 64, 8), {}
    for size in ((window, layers) for window in (*TEXT_WINDOWS, EVERYTHING) for layers in TEXT_LAYERS):
        config = model_config(size, data.vocabulary, CONTEXT)
        losses[size] = train_shortly(Experiment(config, TEXT, train=train, seed=seed), data).validation_loss(batches)
        say(f"text, {_name(size)}: loss {losses[size]:.3f}")
    return losses


def _training(steps: int, scale: float, rate: float) -> TrainConfig:
    schedule = CosineScheduleConfig(warmup=0.05)
    return TrainConfig(max(2, round(steps * scale)), optimizer=AdamWConfig(rate), schedule=schedule, device="cpu")


def accuracy(model: LanguageModel, data: SyntheticData) -> ByDistance:
    """The share of right digits by the distance of the digit from the token that must name it."""
    draw = PROBLEMS[NEEDLE.problem].draw
    drawn = [draw(Random(f"window {number}"), SIZE) for number in range(PROBES)]
    tokens, answers = (
        torch.tensor([data.tokenizer.encode(text).tolist() for text in texts])
        for texts in ([prompt + SEPARATOR for prompt, _ in drawn], [answer for _, answer in drawn])
    )
    with evaluation_mode(model):
        right = torch.cat([model.head(model.features(part)[:, -1]).argmax(-1) for part in tokens.split(500)])
    hits: dict[int, list[bool]] = {}
    for (prompt, _), hit in zip(drawn, (right == answers[:, 0]).tolist(), strict=True):
        hits.setdefault(len(prompt) - prompt.index("#") - 1, []).append(hit)
    return {distance: fmean(some) for distance, some in sorted(hits.items())}


def reach(size: Size, found: ByDistance) -> Reached:
    """The receptive field is the window once and, with every further layer, one less than a window more."""
    window, layers = size
    bound = layers * (window - 1)
    within = [x for distance, x in found.items() if distance <= bound]
    beyond = [x for distance, x in found.items() if distance > bound]
    farthest = 0
    for distance, x in found.items():
        if x < FOUND:
            break
        farthest = distance
    return Reached(bound, fmean(within), fmean(beyond) if beyond else CHANCE, farthest)


def words(reached: Mapping[Size, Reached], losses: Mapping[Size, float]) -> list[str]:
    """Whether anything is found beyond the receptive field, how much of the field is used, and what text loses."""
    worst = max(reached, key=lambda size: reached[size].beyond)
    bounded = reached[worst].beyond <= CHANCE + TOLERANCE
    within = "; ".join(
        f"{_name(size)}: {one.within:.0%} within {one.bound}, found up to {one.farthest}"
        for size, one in reached.items()
    )
    alike: dict[int, list[str]] = {}
    for size, one in reached.items():
        alike.setdefault(one.bound, []).append(f"{_name(size)} {one.within:.0%}")
    same = "; ".join(f"{bound}: {', '.join(some)}" for bound, some in alike.items() if len(some) > 1)
    sentences = [
        f"Beyond the receptive field of layers · (window - 1) tokens, the highest mean accuracy is "
        f"{reached[worst].beyond:.0%} ({_name(worst)}); guessing gives {CHANCE:.0%}. "
        + ("No model finds a needle there." if bounded else "This is more than guessing, against the bound."),
        f"Mean accuracy within the receptive field, and the distance up to which more than half are found: {within}.",
        f"The same receptive field by fewer or more layers: {same}.",
    ]
    for layers in sorted({layers for _, layers in losses}):
        full = losses[EVERYTHING, layers]
        costs = {window: loss - full for (window, n), loss in losses.items() if n == layers and window != EVERYTHING}
        listed = ", ".join(f"window {window} {cost:+.3f}" for window, cost in costs.items())
        enough = [window for window, cost in costs.items() if cost <= NEAR_FULL]
        near = f"within {NEAR_FULL} from window {min(enough)} on" if enough else f"none is within {NEAR_FULL}"
        sentences.append(
            f"Text, {layers} layer{'s' * (layers > 1)}, the loss above that of attention to everything, {full:.3f}: "
            f"{listed}; {near}."
        )
    return [
        *sentences,
        "The bound holds for every training; how much of the field is used depends on the training, which is short "
        "here. Passing a needle on over several layers must be learned, and a miss within the field is no proof that "
        "it cannot be. One seed of each, and characters of a text depend mostly on the last few.",
    ]


def _name(size: Size) -> str:
    window, layers = size
    return f"{'everything' if window == EVERYTHING else f'window {window}'}, {layers} layer{'s' * (layers > 1)}"


def _by_distance(window: int, found: dict[Size, ByDistance], reached: dict[Size, Reached]) -> ChartSection:
    shown = {size: one for size, one in found.items() if size[0] == window}
    bounds = ", ".join(f"{reached[size].bound} with {_name(size).partition(', ')[2]}" for size in shown)
    return ChartSection(
        f"Accuracy by distance, window {window}",
        f"The share of needles that are found, by their distance in tokens; guessing finds {CHANCE:.0%}. The receptive "
        f"field reaches back {bounds}.",
        lines({_name(size): [(float(d), x) for d, x in one.items()] for size, one in shown.items()}, marks=False),
        Axes("distance, tokens", "accuracy", low=0, high=1, x_low=0),
    )


def _by_window(losses: Mapping[Size, float]) -> ChartSection:
    shown = {window: window or CONTEXT for window, _ in losses}
    curves = {
        f"{layers} layer{'s' * (layers > 1)}": [
            (float(width), losses[window, layers]) for window, width in shown.items() if (window, layers) in losses
        ]
        for layers in sorted({layers for _, layers in losses})
    }
    return ChartSection(
        "Validation loss on text, by window",
        f"Nats per character. The last point, {CONTEXT}, is attention to the whole context.",
        lines(curves),
        Axes("window, tokens", "validation loss, nats per character", x_low=0),
    )
