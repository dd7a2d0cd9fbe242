"""The meter as a page of words, charts and tables, as a picture alone, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from regard import __version__
from regard.approximate import words
from regard.approximate.measure import Meter, Outcome
from regard.report.figures import drawing, legend, table
from regard.report.page import POLICY, section
from regard.report.style import CSS
from regard.report.svg import COLOURS, Axes, Series, chart
from regard.runs.disk import replace_file, writing

NAME = "approximate"
TITLE = "What would a cheaper attention cost this model?"
POWERS = "budget, as a power of 2"
WIDE, HIGH = 900, 300  # of one chart in the picture


class Chart(NamedTuple):
    """One figure."""

    title: str
    about: str
    series: list[Series]
    axes: Axes


def charts(meter: Meter) -> list[Chart]:
    """Error, loss, and what speed is bought with it."""
    found = words.kinds(meter)
    order = sorted(found, key=lambda kind: found[kind][0].trial.size is None)  # colours first to those with lines
    error, loss, speed, layers = [], [], [], []
    for kind, outcomes in found.items():
        colour = order.index(kind)
        one = [o for o in outcomes if not o.refused]
        note = "" if all(o.causal for o in one) else ", non-causal layers"
        error.append(Series(kind + note, _over_budgets(one, lambda o: o.error), colour, marks=True))
        inside = [o for o in one if o.loss is not None]
        loss.append(Series(kind, _over_budgets(inside, lambda o: (o.loss or 0.0) - meter.loss), colour, marks=True))
        at = sorted(((o.pace or 0.0) / (o.exact_pace or 1.0), (o.loss or 0.0) - meter.loss) for o in inside)
        speed.append(Series(kind, at, colour, marks=True))
        if one:
            middle = one[len(one) // 2]
            layers.append(Series(f"{kind} {middle.trial.budget}{note}", _by_layer(middle), colour, marks=True))
    about_layers = "The mean error of each layer's heads, at the middle one of the budgets tried."
    return [
        Chart(
            "How far from exact attention",
            "The error of one layer's outputs on the model's own queries, keys and values, mean over all heads.",
            [s for s in error if s.points],
            Axes(POWERS, "relative error of the outputs", low=0),
        ),
        Chart(
            "What it costs the model",
            "How much greater the loss is with the mechanism in every layer, and nothing trained anew.",
            [s for s in loss if s.points],
            Axes(POWERS, "loss more than exact, nats per token"),
        ),
        Chart(
            "What speed it buys",
            "The same losses over the speed of a forward pass; to the right of 1 it is faster than exact attention.",
            [s for s in speed if s.points],
            Axes("speed, exact attention = 1", "loss more than exact, nats per token"),
        ),
        Chart("Which layers mind", about_layers, layers, Axes("layer", "relative error of the outputs", low=0)),
    ]


def _over_budgets(outcomes: Sequence[Outcome], value) -> list[tuple[float, float]]:
    return sorted((math.log2(o.trial.size), value(o)) for o in outcomes if o.trial.size)


def _by_layer(outcome: Outcome) -> list[tuple[float, float]]:
    layers: dict[int, list[float]] = {}
    for head in outcome.heads:
        layers.setdefault(head.layer, []).append(head.error)
    return [(float(layer), sum(found) / len(found)) for layer, found in layers.items()]


def page(meter: Meter, name: str, setting: str) -> str:
    """The whole document."""
    lead = "".join(f"<p>{escape(text)}</p>" for text in words.sentences(meter))
    drawn = [
        section(one.title, one.about, drawing(one.series, one.axes, 330, one.title) + legend(one.series))
        for one in charts(meter)
        if one.series
    ]
    heads = "".join(_heads(kind, outcomes) for kind, outcomes in words.kinds(meter).items())
    parts = [
        f'<header><h1>{escape(TITLE)}</h1><p class="sub">{escape(name)} · {escape(setting)}</p></header>',
        f'<div class="lead">{lead}</div>',
        section("Every budget", words.LEGEND + ". * on the non-causal version of the layers.", _table(meter)),
        *drawn,
        section("Head by head", "The error of each head (layer.head) at every budget.", heads),
        section("Layer by layer", "The loss with one block exchanged and the others exact.", _blocks(meter)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(name)} · approximations · regard</title><style>{CSS}</style></head><body><main>"
        f"{''.join(parts)}<footer>Made by regard {escape(__version__)}.</footer></main></body></html>\n"
    )


def _table(meter: Meter) -> str:
    names = "".join(f'<th scope="col"{_side(i)}>{escape(name)}</th>' for i, name in enumerate(words.COLUMNS))
    body = "".join(
        "<tr>" + "".join(f"<td{_side(i)}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in words.rows(meter)
    )
    return f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _side(column: int) -> str:
    return ' class="n"' if column > 1 else ""


def _heads(kind: str, outcomes: Sequence[Outcome]) -> str:
    one = [o for o in outcomes if not o.refused]
    if not one:
        return ""
    rows = [
        (f"{first.layer}.{first.head}", *(f"{o.heads[i].error:.3f}" for o in one))
        for i, first in enumerate(one[0].heads)
    ]
    return table(("head", *(o.trial.budget for o in one)), rows, kind)


def _blocks(meter: Meter) -> str:
    """What each block alone costs, where that was asked for."""
    found = [one for one in meter.outcomes if one.by_block]
    if not found:
        return ""
    names = ("exchanged in", *(f"block {i}" for i in range(1, len(found[0].by_block) + 1)), "all")
    rows = [
        (f"{o.trial.kind} {o.trial.budget}", *(f"{loss - meter.loss:+.4f}" for loss in (*o.by_block, o.loss or 0.0)))
        for o in found
    ]
    return table(names, rows, "Loss more than exact, nats per token")


def picture(meter: Meter) -> str:
    """The first two charts alone, one below the other, for light and dark readers."""
    shown = [one for one in charts(meter)[:2] if one.series]
    high = len(shown) * (HIGH + 60)
    parts = []
    for number, one in enumerate(shown):
        top = number * (HIGH + 60)
        drawn = chart(one.series, one.axes, WIDE, HIGH, one.title)
        parts.append(f'<text class="title" x="14" y="{top + 22}">{escape(one.title)}</text>')
        parts.append(drawn.replace("<svg ", f'<svg y="{top + 30}" width="{WIDE}" height="{HIGH}" ', 1))
        x = 14.0
        for series in one.series:
            parts.append(
                f'<rect class="k{series.colour % COLOURS}" x="{x}" y="{top + HIGH + 38}" width="12" height="4"/>'
            )
            parts.append(f'<text x="{x + 17}" y="{top + HIGH + 44}">{escape(series.name)}</text>')
            x += 34 + 7 * len(series.name)
    variables, dark = CSS.split("}", 1)[0] + "}", CSS[CSS.index("@media(prefers") :].split("}}", 1)[0] + "}}"
    kinds = "".join(f".k{i},.dots.c{i}{{fill:var(--c{i})}}.line.c{i}{{stroke:var(--c{i})}}" for i in range(COLOURS))
    style = (
        f"{variables}{dark}{kinds}.page{{fill:var(--card)}}.line{{fill:none;stroke-width:2}}"
        ".line.again{stroke-dasharray:2 5}.grid{stroke:var(--grid)}"
        "text{font:12px system-ui,sans-serif;fill:var(--soft)}.title{font-size:15px;fill:var(--ink)}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" width="{WIDE}" height="{high}" '
        f'role="img" aria-labelledby="title about"><title id="title">{escape(TITLE)}</title>'
        f'<desc id="about">{escape(" ".join(words.sentences(meter)))}</desc><style>{style}</style>'
        f'<rect class="page" width="100%" height="100%"/>{"".join(parts)}</svg>'
    )


def write(meter: Meter, folder: Path, name: str, setting: str) -> Path:
    """Write ``approximate.html``, ``.svg`` and ``.json`` into the folder; where the page is."""
    told = {"run": name, "setting": setting, "answer": words.sentences(meter), **words.numbers(meter)}
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{NAME}.json", json.dumps(told, indent=1).encode())
        replace_file(folder / f"{NAME}.svg", picture(meter).encode())
        replace_file(folder / f"{NAME}.html", page(meter, name, setting).encode())
    return folder / f"{NAME}.html"
