"""Extrapolation: what each kind of position does beyond the length it was trained at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data import TextConfig
from regard.models import GPTConfig
from regard.nn import LearnedPositionConfig, NoPositionConfig, PositionConfig, RotaryConfig, SinusoidalConfig
from regard.nn.positions.relative import AlibiConfig, RelativeConfig, T5Config
from regard.nn.positions.scaling import (
    DynamicScalingConfig,
    LinearScalingConfig,
    NTKScalingConfig,
    ScalingConfig,
    YarnScalingConfig,
)
from regard.pages import Axes, ChartSection, Series
from regard.studies.machine import machine
from regard.studies.page import Study
from regard.studies.short import train_shortly
from regard.train import Experiment, MuonConfig, TrainConfig

TRAINED, STEPS, TIMES, TEXTS = 64, 800, (1, 2, 4, 8), 128
END = TRAINED // 2  # places at the end of a text that are compared
POSITIONS: dict[str, PositionConfig] = {
    "none": NoPositionConfig(),
    "sinusoidal": SinusoidalConfig(),
    "learned": LearnedPositionConfig(),
    "rotary": RotaryConfig(),
    "alibi": AlibiConfig(),
    "relative": RelativeConfig(),
    "t5": T5Config(),
}
STRETCH = 16  # places whose losses are averaged in the figure


class Curve(NamedTuple):
    """Losses in texts of one length: the mean at each place, and the mean over the last places of each text."""

    places: list[float]
    ends: list[float]

    @property
    def end(self) -> float:
        return fmean(self.ends)


Found = dict[str, dict[int, Curve]]  # by position and length; no entry where the position ends


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """Which positions work beyond the length they were trained at? Loss by place in texts of 1 to 8 times that length.

    regard study extrapolation

    Character models of the plays, 128 wide, trained alike at 64 characters with each position, then given 64 to 512
    held-out ones that end alike, so that the same characters are predicted from ever more before them. Rotary
    positions also with each scaling, set to the text's length after training. A quarter of an hour on one core.
    """
    steps = max(2, round(STEPS * scale))
    data_config = TextConfig(batch=16)
    data = data_config.build(TRAINED)
    texts = endings(data_config, max(2, round(TEXTS * min(1.0, scale))))
    found: Found = {}
    for name, position in POSITIONS.items():
        config = GPTConfig(vocabulary=data.vocabulary, context=TRAINED, position=position)
        train = TrainConfig(steps=steps, optimizer=MuonConfig(), device="cpu")
        kept: list[Any] = []
        train_shortly(replace(Experiment(), model=config, data=data_config, train=train, seed=seed), data, kept)
        if not kept:
            say(f"{name}: left out, its loss was not finite in training")
            continue
        found[name] = {n: by_place(kept[0], text) for n, text in texts.items() if fits(kept[0], n)}
        say(f"{name}: {told(found[name])}")
        if name == "rotary":
            scaled = rescaled(kept[0], texts)
            for label, curves in scaled.items():
                say(f"{label}: {told(curves)}")
            found |= scaled
    return Study(
        "extrapolation",
        "Which positions work beyond the length they were trained at?",
        words(found),
        [_by_place(found), _by_length(found)],
        {"trained": TRAINED, "losses": {k: {n: c._asdict() for n, c in v.items()} for k, v in found.items()}},
        f"width 128, 4 layers, context {TRAINED}, batch 16, {steps} updates each, {len(texts[TRAINED])} held-out "
        f"texts, seed {seed}, {machine(torch.device('cpu'))}",
    )


def rescaled(model: Any, texts: dict[int, Tensor]) -> Found:
    """The same weights with each scaling set to the length of the text; rotary positions hold no weights."""

    def scalings(times: float) -> dict[str, ScalingConfig]:
        return {
            "rotary, linear": LinearScalingConfig(times),
            "rotary, ntk": NTKScalingConfig(times),
            "rotary, dynamic ntk": DynamicScalingConfig(2.0, round(times * TRAINED)),
            "rotary, yarn": YarnScalingConfig(times),
        }

    plain, heads = model.position, model.config.heads
    found: Found = {name: {} for name in scalings(1)}
    for length, text in texts.items():
        for name, scaling in scalings(length / TRAINED).items():
            sizes = {"width": model.config.width, "head_width": model.config.width // heads, "context": TRAINED}
            model.position = RotaryConfig(scaling=scaling).build(**sizes)
            found[name][length] = by_place(model, text)
    model.position = plain
    return found


def fits(model: Any, length: int) -> bool:
    """Whether the model's positions go that far."""
    return model.position.limit is None or length <= model.position.limit


@torch.no_grad()
def by_place(model: Any, texts: Tensor) -> Curve:
    """The losses of texts [B, N + 1]."""
    model.eval()
    losses = []
    for some in texts.split(max(1, 8192 // texts.shape[1])):
        logits, targets = model(some[:, :-1]), some[:, 1:]
        losses.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape))
    found = torch.cat(losses).double()
    return Curve(found.mean(0).tolist(), found[:, -END:].mean(1).tolist())


def endings(config: TextConfig, count: int) -> dict[int, Tensor]:
    """So many held-out texts of the greatest length, from all over the part; and the endings of each, by length."""
    longest = TRAINED * TIMES[-1]
    whole = [b for b in config.build(longest).validation_batches(1) if (b.targets >= 0).all()]
    chosen = whole[:: max(1, len(whole) // count)][:count]
    texts = torch.cat([torch.cat((b.inputs, b.targets[:, -1:]), dim=1) for b in chosen])
    return {TRAINED * n: texts[:, longest - TRAINED * n :] for n in TIMES}


def words(found: Found) -> list[str]:
    """Who gains, who holds and who breaks: the same characters, predicted from the longest texts and the trained."""
    longest = TRAINED * TIMES[-1]
    change = {name: _change(curves[TRAINED], curves[longest]) for name, curves in found.items() if longest in curves}
    kinds = {
        "better": [n for n, (x, error) in change.items() if x < -2 * error],
        "no different": [n for n, (x, error) in change.items() if abs(x) <= 2 * error],
        "worse": [n for n, (x, error) in change.items() if x > 2 * error],
    }
    listed = {
        what: ", ".join(
            f"{n} ({change[n][0]:+.3f} ± {change[n][1]:.3f})" for n in sorted(names, key=lambda n: change[n])
        )
        for what, names in kinds.items()
    }
    parts = [f"{what} with {names}" for what, names in listed.items() if names]
    said = [
        f"Trained on texts of {TRAINED} characters and given {longest}, a model predicts the last {END}, in nats per "
        f"character, {'; '.join(parts)}. (± is the standard error over texts; less than two of them is no difference.)",
    ]
    ended = [name for name in found if name not in change]
    if ended:
        said.append(f"With {' and '.join(ended)} positions a text of more than {TRAINED} is refused: they end there.")
    far, near = (min(group, key=lambda n: found[n][at].end) for group, at in ((change, longest), (found, TRAINED)))
    said.append(
        f"At {longest} the least loss is that of {far}, {found[far][longest].end:.3f}; at {TRAINED} that of {near}, "
        f"{found[near][TRAINED].end:.3f}. One training each: small differences between positions may be the seed's."
    )
    return said


def _change(near: Curve, far: Curve) -> tuple[float, float]:
    """The mean difference over texts, and its standard error."""
    differences = [b - a for a, b in zip(near.ends, far.ends, strict=True)]
    return fmean(differences), stdev(differences) / len(differences) ** 0.5


def told(curves: dict[int, Curve]) -> str:
    """One line for the eye."""
    return "loss at the end of texts of " + ", ".join(f"{n}: {curve.end:.3f}" for n, curve in curves.items())


def _by_place(found: Found) -> ChartSection:
    longest = TRAINED * TIMES[-1]
    series = []
    for name, curves in found.items():
        losses = curves[max(curves)].places
        means = [sum(losses[i : i + STRETCH]) / STRETCH for i in range(0, len(losses), STRETCH)]
        points = [(STRETCH * (i + 0.5), mean) for i, mean in enumerate(means)]
        series.append(Series(name, points, len(series)))
    return ChartSection(
        f"Loss by place in texts of {longest} characters",
        f"The mean loss of {STRETCH} places each, in nats per character. Training ended at {TRAINED}. A line that goes "
        "on falling uses what it never had so much of; one that is flat does no harm; one that rises meets positions "
        "it cannot read.",
        series,
        Axes("place in the text", "loss, nats per character", x_low=0, high=_ceiling(found)),
    )


def _by_length(found: Found) -> ChartSection:
    lengths = [TRAINED * n for n in TIMES]
    series = [
        Series(name, [(float(n), curve.end) for n, curve in curves.items()], i, marks=True)
        for i, (name, curves) in enumerate(found.items())
    ]
    rows = [
        (name, *(f"{curves[n].end:.3f}" if n in curves else "ends" for n in lengths)) for name, curves in found.items()
    ]
    return ChartSection(
        "Loss at the end of texts, by their length",
        f"The mean loss of the last {END} places, the same characters at every length, in nats per character. Scalings "
        "are set to the length of the text, without further training.",
        series,
        Axes("characters in the text", "loss, nats per character", x_low=0, high=_ceiling(found)),
        ("position", *map(str, lengths)),
        rows,
    )


def _ceiling(found: Found) -> float:
    """Well above the best: a line that leaves the figure there has broken."""
    return min(curves[TRAINED].end for curves in found.values()) + 1.5
