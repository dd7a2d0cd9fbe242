"""Length extrapolation: position encodings beyond the length they were trained at."""

import math
from collections.abc import Callable
from statistics import fmean, stdev
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import load
from regard.data import TextConfig
from regard.models import GPTConfig
from regard.models.base import LanguageModel
from regard.models.gpt import GPT
from regard.nn import PositionConfig
from regard.nn.positions.position import RotaryConfig
from regard.nn.positions.scaling import (
    DynamicScalingConfig,
    LinearScalingConfig,
    NTKScalingConfig,
    ScalingConfig,
    YarnScalingConfig,
)
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.page import Study, lines, machine
from regard.studies.short_training import train_shortly
from regard.train import Experiment, MuonConfig, TrainConfig

TRAINED, STEPS, TIMES, TEXTS = 64, 800, (1, 2, 4, 8), 128
END = TRAINED // 2  # positions at the end of a text that are compared
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "alibi", "relative", "t5")
BIN = 16  # positions whose losses are averaged in the chart


class LossCurve(NamedTuple):
    """Losses in texts of one length: the mean at each position, and the mean over the last positions of each text."""

    positions: list[float]
    ends: list[float]

    @property
    def end(self) -> float:
        return fmean(self.ends)


Results = dict[str, dict[int, LossCurve]]  # by position encoding and text length, without unsupported lengths


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """Which position encodings extrapolate beyond the trained length? Loss in texts of 1 to 8 times that length.

    regard study extrapolation

    Character models of Shakespeare of width 128, trained at 64 characters with each position encoding, then evaluated
    on 64 to 512 held-out characters with the same ending, so that the same characters are predicted from more context.
    Rotary positions also with each scaling, set to the text's length after training. A quarter of an hour on one core.
    """
    steps = max(2, round(STEPS * scale))
    data_config = TextConfig(batch=16)
    data = data_config.build(TRAINED)
    texts = endings(data_config, max(2, round(TEXTS * min(1.0, scale))))
    results: Results = {}
    for name in POSITIONS:
        config = GPTConfig(vocabulary=data.vocabulary, context=TRAINED, position=load(PositionConfig, name))
        train = TrainConfig(steps=steps, optimizer=MuonConfig(), device="cpu")
        run = train_shortly(Experiment(config, data_config, train=train, seed=seed), data)
        if not math.isfinite(run.loss):
            say(f"{name}: left out, its training loss was not finite")
            continue
        found = {name: {n: position_losses(run.model, text) for n, text in texts.items() if fits(run.model, n)}}
        if name == "rotary":
            assert isinstance(run.model, GPT)
            found |= rescaled(run.model, texts)
        for label, curves in found.items():
            say(f"{label}: loss at the end of texts of " + ", ".join(f"{n}: {c.end:.3f}" for n, c in curves.items()))
        results |= found
    return Study(
        words(results),
        [_by_position(results), _by_length(results)],
        {"trained": TRAINED, "losses": {k: {n: c._asdict() for n, c in v.items()} for k, v in results.items()}},
        f"width 128, 4 layers, context {TRAINED}, batch 16, {steps} steps each, {len(texts[TRAINED])} held-out "
        f"texts, seed {seed}, {machine()}",
    )


def rescaled(model: GPT, texts: dict[int, Tensor]) -> Results:
    """The same weights with each scaling set to the length of the text; rotary positions have no weights."""

    def scalings(times: float) -> dict[str, ScalingConfig]:
        return {
            "rotary, linear": LinearScalingConfig(times),
            "rotary, ntk": NTKScalingConfig(times),
            "rotary, dynamic ntk": DynamicScalingConfig(2.0, round(times * TRAINED)),
            "rotary, yarn": YarnScalingConfig(times),
        }

    plain, heads, width = model.position, model.config.heads, model.config.width
    results: Results = {name: {} for name in scalings(1)}
    for length, text in texts.items():
        for name, scaling in scalings(length / TRAINED).items():
            rotary = RotaryConfig(scaling=scaling)
            model.position = rotary.build(width=width, head_width=width // heads, context=TRAINED)
            results[name][length] = position_losses(model, text)
    model.position = plain
    return results


def fits(model: LanguageModel, length: int) -> bool:
    """Whether the position encoding supports that length."""
    return model.limit is None or length <= model.limit


@torch.no_grad()
def position_losses(model: LanguageModel, texts: Tensor) -> LossCurve:
    """The losses of texts [B, N + 1]."""
    model.eval()
    losses = []
    for some in texts.split(max(1, 8192 // texts.shape[1])):
        logits, targets = model(some[:, :-1]), some[:, 1:]
        losses.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape))
    whole = torch.cat(losses).double()
    return LossCurve(whole.mean(0).tolist(), whole[:, -END:].mean(1).tolist())


def endings(config: TextConfig, count: int) -> dict[int, Tensor]:
    """``count`` evenly spaced held-out texts of the maximum length, and the endings of each, by length."""
    longest = TRAINED * TIMES[-1]
    whole = [b for b in config.build(longest).validation_batches(1) if (b.targets >= 0).all()]
    chosen = whole[:: max(1, len(whole) // count)][:count]
    texts = torch.cat([torch.cat((b.inputs, b.targets[:, -1:]), dim=1) for b in chosen])
    return {TRAINED * n: texts[:, longest - TRAINED * n :] for n in TIMES}


def words(results: Results) -> list[str]:
    """The change of the loss on the same characters, from the trained to the maximum length."""
    longest = TRAINED * TIMES[-1]
    change = {name: _change(curves[TRAINED], curves[longest]) for name, curves in results.items() if longest in curves}
    listed: dict[str, list[str]] = {"better": [], "no different": [], "worse": []}
    for name, (x, error) in sorted(change.items(), key=lambda item: item[1]):
        what = "better" if x < -2 * error else "worse" if x > 2 * error else "no different"
        listed[what].append(f"{name} ({x:+.3f} ± {error:.3f})")
    parts = [f"{what} with {', '.join(names)}" for what, names in listed.items() if names]
    sentences = [
        f"Trained on {TRAINED} characters and evaluated on {longest}, the loss of the last {END}, in nats per "
        f"character, is {'; '.join(parts)}. (± is the standard error over texts; two of them are significant.)",
    ]
    ended = [name for name in results if name not in change]
    if ended:
        sentences.append(f"With {' and '.join(ended)} positions, texts of more than {TRAINED} characters are refused.")
    far, near = (min(group, key=lambda n: results[n][at].end) for group, at in ((change, longest), (results, TRAINED)))
    sentences.append(
        f"At {longest} characters {far} has the lowest loss, {results[far][longest].end:.3f}; at {TRAINED} it is "
        f"{near}, {results[near][TRAINED].end:.3f}. With one run each, small differences may be due to the seed."
    )
    return sentences


def _change(near: LossCurve, far: LossCurve) -> tuple[float, float]:
    """The mean difference over texts, and its standard error."""
    differences = [b - a for a, b in zip(near.ends, far.ends, strict=True)]
    return fmean(differences), stdev(differences) / len(differences) ** 0.5


def _by_position(results: Results) -> ChartSection:
    longest = TRAINED * TIMES[-1]
    losses = {name: curves[max(curves)].positions for name, curves in results.items()}
    points = {
        name: [(i + BIN / 2, fmean(values[i : i + BIN])) for i in range(0, len(values), BIN)]
        for name, values in losses.items()
    }
    return ChartSection(
        f"Loss by position in texts of {longest} characters",
        f"The mean loss of {BIN} positions each, in nats per character. The trained length is {TRAINED}. A line that "
        "keeps falling uses the longer context, a flat one ignores it, and a rising one does not extrapolate.",
        lines(points, marks=False),
        Axes("position in the text", "loss, nats per character", x_low=0, high=_ceiling(results)),
    )


def _by_length(results: Results) -> ChartSection:
    return ChartSection(
        "Loss at the end of texts, by their length",
        f"The mean loss of the last {END} positions, the same characters at every length, in nats per character. "
        "Scalings are set to the length of the text, without further training.",
        lines({name: [(float(n), c.end) for n, c in curves.items()] for name, curves in results.items()}),
        Axes("characters in the text", "loss, nats per character", x_low=0, high=_ceiling(results)),
    )


def _ceiling(results: Results) -> float:
    """The upper end of the axis; lines that do not extrapolate leave the chart."""
    return min(curves[TRAINED].end for curves in results.values()) + 1.5
