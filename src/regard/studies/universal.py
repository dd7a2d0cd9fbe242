"""The functions that a small Transformer fits: with positions any, without equivariant ones (Yun et al. 2020)."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from itertools import product
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.config import load
from regard.models import EncoderConfig, Model
from regard.pages.charts import Axes
from regard.pages.html import ChartSection
from regard.studies.page import Study, lines, machine

TOKENS, LENGTH, STEPS, RATE = 4, 4, 500, 5e-3
WIDTHS, DEPTHS = (4, 8, 16, 32), (1, 2)
WIDTH, DEPTH = 32, 2  # of the models without a part
Row = tuple[int, ...]
Function = dict[Row, Row]  # every sequence of tokens, and its output

#: What is left out, and what outputs at a place can then depend on; ("whole" is everything).
PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "everything": ({}, "whole"),
    "no positions": ({"position": "none"}, "own token and the others in any order"),
    "no attention": ({"attention": {"kind": "window", "size": 1}}, "own token and place"),
    "no feed-forward network": ({"feedforward": "none"}, "whole"),
    "no residual path": ({"block": "no-residual"}, "whole"),
}
SEEN: dict[str, Callable[[Row, int], Hashable]] = {
    "whole": lambda row, place: (row, place),
    "own token and the others in any order": lambda row, place: (row[place], *sorted(row)),
    "own token and place": lambda row, place: (row[place], place),
}


class Fit(NamedTuple):
    """Errors of a model that was fitted to a function."""

    error: float  # share of the outputs that are wrong
    parameters: int


def study(scale: float, seed: int, say: Callable[[str], None]) -> Study:
    """Which functions can a small Transformer fit? Error by width and depth, and without each of its parts.

    regard study universal

    Functions from 4 tokens of 4 kinds to as many, given by their whole table of 256 sequences: a random one, a random
    one that does not depend on the order, the rank of each token, and the reversed sequence. Encoders are trained on
    the whole table; what they could reach at best without a part is counted. Three minutes on 2 cores.
    """
    steps = max(5, round(STEPS * scale))
    functions = tables(seed)
    grid: dict[int, list[Fit]] = {}
    for depth in DEPTHS:
        grid[depth] = [fit(encoder(width, depth, {}), functions["random"], steps, seed) for width in WIDTHS]
        say(
            f"random, {depth} layers: "
            + ", ".join(f"width {w} {f.error:.1%}" for w, f in zip(WIDTHS, grid[depth], strict=True))
        )
    errors: dict[str, dict[str, float]] = {}
    for part, (changes, _) in PARTS.items():
        config = encoder(WIDTH, DEPTH, changes)
        errors[part] = {name: fit(config, function, steps, seed).error for name, function in functions.items()}
        say(f"{part}: " + ", ".join(f"{name} {error:.1%}" for name, error in errors[part].items()))
    limits = {
        part: {name: least_error(function, SEEN[seen]) for name, function in functions.items()}
        for part, (_, seen) in PARTS.items()
    }
    return Study(
        words(grid, errors, limits),
        _charts(grid, errors, limits),
        {
            "widths": WIDTHS,
            "grid": {depth: [one._asdict() for one in row] for depth, row in grid.items()},
            "errors": errors,
            "limits": limits,
        },
        f"{TOKENS}^{LENGTH} sequences, {steps} steps of AdamW on all of them, rate {RATE:g} falling to 0, width "
        f"{WIDTH} and {DEPTH} layers without a part, seed {seed}, {machine()}",
    )


def tables(seed: int) -> dict[str, Function]:
    """The functions."""
    draw = Random(seed)
    rows = list(product(range(TOKENS), repeat=LENGTH))
    values = defaultdict[Hashable, int](lambda: draw.randrange(TOKENS))
    alike = SEEN["own token and the others in any order"]
    return {
        "random": {row: tuple(draw.randrange(TOKENS) for _ in row) for row in rows},
        "random without order": {row: tuple(values[alike(row, place)] for place in range(LENGTH)) for row in rows},
        "rank": {row: tuple(sum(other < own for other in row) for own in row) for row in rows},
        "reverse": {row: row[::-1] for row in rows},
    }


def least_error(function: Function, seen: Callable[[Row, int], Hashable]) -> float:
    """The least share of wrong outputs that depend on what is seen alone: the most frequent value is right."""
    found = defaultdict[Hashable, Counter[int]](Counter)
    for row, outputs in function.items():
        for place, output in enumerate(outputs):
            found[seen(row, place)][output] += 1
    return 1 - sum(max(counts.values()) for counts in found.values()) / (LENGTH * len(function))


def encoder(width: int, depth: int, changes: dict[str, Any]) -> EncoderConfig:
    """An encoder that reads a sequence and predicts a token at each place."""
    sizes = {"vocabulary": TOKENS, "context": LENGTH, "width": width, "heads": 2, "layers": depth, "dropout": 0.0}
    return load(EncoderConfig, {**sizes, "tied": False, "zero_init": False, **changes})


def fit(config: EncoderConfig, function: Function, steps: int, seed: int) -> Fit:
    """Train on the whole table; the share of its outputs that are wrong in the end."""
    torch.manual_seed(seed)
    model = config.build()
    inputs, targets = (torch.tensor(list(side)) for side in (function.keys(), function.values()))
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(_logits(model, inputs).flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        wrong = _logits(model, inputs).argmax(-1) != targets
    return Fit(wrong.double().mean().item(), sum(p.numel() for p in model.parameters()))


def _logits(model: Model, inputs: Tensor) -> Tensor:
    return model(inputs)[..., :TOKENS]  # without the mask token


def words(
    grid: dict[int, list[Fit]], errors: dict[str, dict[str, float]], limits: dict[str, dict[str, float]]
) -> list[str]:
    """The errors with everything, what is missing without each part, and whether the bounds were kept and reached."""
    depths = "; ".join(
        f"{depth} layer{'s' * (depth > 1)} {', '.join(f'{one.error:.1%}' for one in row)}"
        for depth, row in grid.items()
    )
    best = min((one.error, one.parameters) for row in grid.values() for one in row)
    said = [
        f"Share of wrong outputs of a random function at widths {', '.join(map(str, WIDTHS))}: {depths}. The lowest is "
        f"{best[0]:.1%}, with {best[1]:,} parameters."
    ]
    for part, found in errors.items():
        said.append(
            f"With {part}: {_listed(found)}."
            if part == "everything"
            else f"With {part}: {_listed(found)}; {_bound(found, limits[part])}."
        )
    said.append(
        "A bound counts the outputs that must be wrong where a model cannot tell two inputs apart. An error above the "
        "bound may be one of training as well as of the model: one optimizer, one rate, one seed. The whole table is "
        "trained on, so this is about what can be represented and found, not about what generalizes."
    )
    return said


def _listed(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {error:.1%}" for name, error in found.items())


def _bound(found: dict[str, float], limits: dict[str, float]) -> str:
    """What the errors say about the bounds of a model without a part."""
    if max(limits.values()) == 0:
        failed = [name for name, error in found.items() if error > 0.01]
        return (
            f"nothing forbids these functions, and it does not fit {_and(failed)}" if failed else "it fits all of them"
        )
    reached = [name for name, error in found.items() if error <= limits[name] + 0.01]
    text = f"the least that is possible: {_listed(limits)}"
    return f"{text}, which it reaches for {_and(reached)}" if reached else f"{text}, which it does not reach"


def _and(names: Iterable[str]) -> str:
    *first, last = [f"'{name}'" for name in names]
    return f"{', '.join(first)} and {last}" if first else last


def _charts(
    grid: dict[int, list[Fit]], errors: dict[str, dict[str, float]], limits: dict[str, dict[str, float]]
) -> list[ChartSection]:
    curves = {
        f"{depth} layer{'s' * (depth > 1)}": [(float(w), 100 * one.error) for w, one in zip(WIDTHS, row, strict=True)]
        for depth, row in grid.items()
    }
    rows = [
        (part, *(f"{100 * error:.1f} (bound {100 * limits[part][name]:.1f})" for name, error in found.items()))
        for part, found in errors.items()
    ]
    return [
        ChartSection(
            "A random function",
            f"The share of its {LENGTH * TOKENS**LENGTH:,} outputs that an encoder gets wrong after training on all.",
            lines(curves),
            Axes("width", "wrong outputs, %", low=0, x_low=0),
        ),
        ChartSection(
            "Without a part",
            "Wrong outputs in percent, and the least that is possible for a model that sees only: "
            + "; ".join(f"{part}, {seen}" for part, (_, seen) in PARTS.items() if seen != "whole")
            + ".",
            [],
            Axes("", ""),
            columns=("model", *next(iter(errors.values()))),
            rows=rows,
        ),
    ]
