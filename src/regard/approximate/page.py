"""The result of `regard approximate` as a page, as a picture and as JSON."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from regard.approximate import words
from regard.approximate.measure import Measurement, Sweep
from regard.pages import html
from regard.pages.charts import Axes, Series
from regard.pages.html import ChartSection, chart_section, folded, section, table
from regard.runs.disk import replace_files

NAME = "approximate"
TITLE = "What would a cheaper attention cost this model?"
BUDGET = "log2 of the budget"
ERROR, MORE = "relative error of the outputs", "loss increase, nats per token"


def charts(sweep: Sweep) -> list[ChartSection]:
    """Error and loss over the budgets, loss over speed, error over layers."""
    by_kind = words.by_kind(sweep)
    order = sorted(by_kind, key=lambda kind: by_kind[kind][0].trial.size is None)  # kinds with lines get colors first
    error, loss, speed, layers = [], [], [], []
    for kind, outcomes in by_kind.items():
        color = order.index(kind)
        measured = [o for o in outcomes if not o.refused]
        note = "" if all(o.causal for o in measured) else ", non-causal layers"
        error.append(Series(kind + note, _over_budgets(measured, lambda o: o.error), color, marks=True))
        inside = [o for o in measured if o.loss is not None]
        loss.append(Series(kind, _over_budgets(inside, lambda o: o.more(sweep.loss)), color, marks=True))
        speed.append(Series(kind, sorted((o.speedup, o.more(sweep.loss)) for o in inside), color, marks=True))
        if measured:
            middle = measured[len(measured) // 2]
            layers.append(Series(f"{kind} {middle.trial.budget}{note}", _by_layer(middle), color, marks=True))
    sections = [
        ChartSection(
            "Error against the model's own attention",
            "The error of one layer's outputs on the model's own queries, keys and values, mean over all heads.",
            error,
            Axes(BUDGET, ERROR, low=0),
        ),
        ChartSection(
            "Loss",
            "The increase of the loss with the mechanism in every layer, without further training.",
            loss,
            Axes(BUDGET, MORE),
        ),
        ChartSection(
            "Loss against speed",
            "The same losses over the speed of a forward pass; to the right of 1 it is faster than the model's own.",
            speed,
            Axes("speed, the model's own attention = 1", MORE),
        ),
        ChartSection(
            "Error by layer",
            "The mean error of each layer's heads, at the middle one of the budgets tried.",
            layers,
            Axes("layer", ERROR, low=0),
        ),
    ]
    drawn = [replace(chart, series=[s for s in chart.series if s.points]) for chart in sections]
    return [chart for chart in drawn if chart.series]


def _over_budgets(outcomes: Sequence[Measurement], value: Callable[[Measurement], float]) -> list[tuple[float, float]]:
    return sorted((math.log2(o.trial.size), value(o)) for o in outcomes if o.trial.size)


def _by_layer(outcome: Measurement) -> list[tuple[float, float]]:
    layers: dict[int, list[float]] = {}
    for head in outcome.heads:
        layers.setdefault(head.layer, []).append(head.error)
    return [(float(layer), sum(errors) / len(errors)) for layer, errors in layers.items()]


def page(sweep: Sweep, name: str, setting: str) -> str:
    """The whole document."""
    heads = "".join(_heads(kind, outcomes) for kind, outcomes in words.by_kind(sweep).items())
    every = table(words.COLUMNS, words.rows(sweep), left=2)
    parts = [
        html.heading(TITLE, f"{name} · {setting}"),
        html.paragraphs(words.sentences(sweep)),
        section("All budgets", words.LEGEND + ". * on the non-causal version of the layers.", every),
        *(chart_section(chart, numbers=False) for chart in charts(sweep)),
        section("Error by head", "The error of each head (layer.head) at every budget.", heads),
        section("Loss by layer", "The loss with one block replaced and the others unchanged.", _blocks(sweep)),
    ]
    return html.page(f"{name} · approximations", parts)


def _heads(kind: str, outcomes: Sequence[Measurement]) -> str:
    measured = [o for o in outcomes if not o.refused]
    if not measured:
        return ""
    rows = [
        (f"{first.layer}.{first.head}", *(f"{o.heads[i].error:.3f}" for o in measured))
        for i, first in enumerate(measured[0].heads)
    ]
    return folded(kind, table(("head", *(o.trial.budget for o in measured)), rows))


def _blocks(sweep: Sweep) -> str:
    """The loss increase of each block alone, if it was measured."""
    measured = [o for o in sweep.outcomes if o.loss_by_block]
    if not measured:
        return ""
    names = ("replaced in", *(f"block {i}" for i in range(1, len(measured[0].loss_by_block) + 1)), "all")
    rows = [
        (
            f"{o.trial.kind} {o.trial.budget}",
            *(f"{loss - sweep.loss:+.4f}" for loss in (*o.loss_by_block, o.loss or 0.0)),
        )
        for o in measured
    ]
    return folded("Loss increase, nats per token", table(names, rows))


def picture(sweep: Sweep) -> str:
    """Error and loss over the budgets as one SVG file."""
    shown = [chart for chart in charts(sweep) if chart.axes.x == BUDGET]
    return html.chart_picture(shown, TITLE, " ".join(words.sentences(sweep)))


def write(sweep: Sweep, folder: Path, name: str, setting: str) -> Path:
    """Write ``approximate.html``, ``.svg`` and ``.json`` into the folder; return the path of the page."""
    numbers = {"run": name, "setting": setting, "answer": words.sentences(sweep), **words.numbers(sweep)}
    files = {"json": json.dumps(numbers, indent=1), "svg": picture(sweep), "html": page(sweep, name, setting)}
    replace_files(folder, {f"{NAME}.{kind}": text for kind, text in files.items()})
    return folder / f"{NAME}.html"
