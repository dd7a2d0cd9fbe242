"""A comparison as an HTML page: tables, curves against time, FLOPs and tokens, learning rates, loss by position."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean

from regard.compare.budget import StepCost
from regard.compare.result import JSON, PAGE, ArchitectureComparison
from regard.compare.words import LIMITS, sentences, table, title
from regard.pages import html
from regard.pages.charts import Axes, Series
from regard.pages.html import ChartSection, chart_section
from regard.runs.disk import replace_files

BINS = 32  # points of a curve of the loss by position
LOSS = "validation loss, nats per target"
UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def write(comparison: ArchitectureComparison, folder: Path, command: str) -> Path:
    """Write ``compare.html`` and ``compare.json``; return the path of the page."""
    text = json.dumps(comparison.record(), indent=1)
    replace_files(folder, {JSON: text, PAGE: page(comparison, command)})
    return folder / PAGE


def page(comparison: ArchitectureComparison, command: str) -> str:
    """The whole document."""
    names = ", ".join(one.name for one in comparison.contenders)
    parts = [
        html.heading(f"{comparison.name}: {names}", comparison.setting),
        html.paragraphs([*sentences(comparison), f"Made by: {command}"]),
    ]
    for place, length in enumerate(comparison.lengths):
        columns, rows = table(comparison, place)
        about = "Mean validation loss over seeds with its 95 % interval. s/step: measured in turn, and while training."
        parts.append(html.section(title(length), about, html.table(columns, rows, left=1)))
        parts += [chart_section(one) for one in curves(comparison, place)]
        parts += [chart_section(one) for one in by_position(comparison, place)]
    parts += [chart_section(rates(comparison)), sizes(comparison)]
    parts.append(html.section("Limits", "", html.paragraphs(LIMITS)))
    return html.page(f"compare {comparison.name}", parts)


def curves(comparison: ArchitectureComparison, length: int) -> list[ChartSection]:
    """The loss against time, FLOPs and tokens."""
    measures = (("seconds", "training time", "s"), ("flops", "training FLOPs", ""), ("tokens", "training tokens", ""))
    charts = []
    for field, label, unit in measures:
        most = max(
            training.steps * getattr(one.costs.step, field)
            for one in comparison.contenders
            for training in comparison.of(one.name, length)
        )
        size, prefix = (1.0, "") if field == "seconds" else next(pair for pair in UNITS if most >= pair[0])
        series = [
            averaged(comparison, one.name, length, one.costs.step, field, size, color)
            for color, one in enumerate(comparison.contenders)
        ]
        axes = Axes(f"{label}, {prefix}{unit}".rstrip(", "), LOSS, x_low=0)
        about = "The mean over seeds; the band reaches from the lowest to the highest."
        charts.append(ChartSection(f"Loss against {label}, {comparison.lengths[length]!s}", about, series, axes))
    return charts


def averaged(
    comparison: ArchitectureComparison, name: str, length: int, step: StepCost, field: str, size: float, color: int
) -> Series:
    """The mean curve of a contender over its seeds."""
    each = getattr(step, field) / size
    losses: dict[int, list[float]] = {}
    for training in comparison.of(name, length):
        for steps, loss in training.curve:
            losses.setdefault(steps, []).append(loss)
    points = [(steps * each, fmean(found)) for steps, found in sorted(losses.items())]
    band = [(steps * each, min(found), max(found)) for steps, found in sorted(losses.items())]
    return Series(name, points, color, band=band if len(comparison.of(name, length)) > 1 else ())


def by_position(comparison: ArchitectureComparison, length: int) -> list[ChartSection]:
    """The loss at positions of the context, averaged over neighbors and seeds."""
    series = []
    for color, one in enumerate(comparison.contenders):
        found = [training.positions for training in comparison.of(one.name, length) if training.positions]
        if found:
            mean = [fmean(values) for values in zip(*found, strict=True)]
            series.append(Series(one.name, binned(mean), color))
    if not series:
        return []
    axes = Axes("position in the context (mean of neighbors)", "loss, nats per token", x_low=0)
    about = "A falling curve uses more context; a flat one does not. The first few positions are left out."
    name = f"Loss by position, {comparison.lengths[length]!s}"
    return [ChartSection(name, about, series, axes, 280)]


def binned(losses: list[float]) -> list[tuple[float, float]]:
    """Means of neighbors, at most ``BINS``; without the first one of many, where there is hardly any context."""
    size = max(1, -(-len(losses) // BINS))
    ends = [(first, min(first + size, len(losses))) for first in range(0, len(losses), size)]
    means = [((first + end + 1) / 2, fmean(losses[first:end])) for first, end in ends]
    return means[1:] if size > 1 else means


def rates(comparison: ArchitectureComparison) -> ChartSection:
    """The trials of learning rates."""
    series = [
        Series(one.name, [(math.log10(t.factor), t.loss) for t in one.tried if math.isfinite(t.loss)], color, True)
        for color, one in enumerate(comparison.contenders)
        if len(one.tried) > 1
    ]
    axes = Axes("log10 of the learning rate over the recipe's own", LOSS)
    about = "One short trial each. Trials that diverged are left out."
    tried = {one.name: ", ".join(f"{t.rate:g}: {loss_of(t.loss)}" for t in one.tried) for one in comparison.contenders}
    rows = [(one.name, f"{one.rate:g}", tried[one.name]) for one in comparison.contenders]
    return ChartSection(
        "Learning rates", about, series, axes, 280, columns=("contender", "chosen", "trials"), rows=rows
    )


def loss_of(loss: float) -> str:
    """A loss of a trial."""
    return f"{loss:.4f}" if math.isfinite(loss) else "diverged"


def sizes(comparison: ArchitectureComparison) -> str:
    """The models."""
    rows = [
        (one.name, one.kind, f"{one.layers}", f"{one.width}", f"{one.costs.parameters:,}")
        for one in comparison.contenders
    ]
    return html.section("Models", "", html.table(("contender", "kind", "layers", "width", "parameters"), rows, left=2))
