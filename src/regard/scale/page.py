"""The result of a ladder in words, as a table, and as a page with figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from regard.pages import html
from regard.pages.charts import Axes, Series
from regard.pages.html import ChartSection, chart_section
from regard.pages.numbers import count, unit
from regard.runs.disk import replace_files
from regard.scale.ladder import Ladder
from regard.scale.law import Law
from regard.scale.test import WITHIN, ScaleResult

CURVE = 24  # points of a drawn curve
DASHED = 8  # added to a color
Losses = dict[tuple[int, int], list[float]]  # by parameters and tokens: one loss per seed


def words(ladder: Ladder, result: ScaleResult) -> list[str]:
    """What was found."""
    fitted, target = result.fitted, result.target
    law = fitted.law
    left_out = sum(not math.isfinite(one.outcome.loss) for one in result.trained)
    worst = max(abs(math.expm1(r)) for r in fitted.residuals)
    tried = [one.parameters for one in ladder.rungs]
    found = [
        *ladder.warnings(),
        f"loss = {law.E:.4g} + {law.A:.4g} / N^{law.a:.3g} + {law.B:.4g} / D^{law.b:.3g}: N parameters without "
        f"embeddings, D tokens. Fitted to {len(fitted.residuals)} trainings of {min(tried):,} to {max(tried):,} "
        f"parameters; the worst of them is {worst:.2%} off.",
        f"Predicted for {target.parameters:,} parameters, {target.parameters / max(tried):.2f} times the largest of "
        f"them, and {target.tokens:,} tokens: {result.prediction}.",
    ]
    if left_out:
        found.insert(0, f"{left_out} trainings diverged and were left out; lower the learning rate.")
    if result.tested:
        verdict = "within" if abs(result.error) <= WITHIN else "not within"
        inside = "in" if result.prediction.low <= result.result <= result.prediction.high else "outside"
        found.append(
            f"It came to {result.result:.4f} (mean of {len(result.tested)}): the prediction is {result.error:+.2%} "
            f"off, {verdict} {WITHIN:.0%}, and the result is {inside} the 95 % interval."
            if math.isfinite(result.result)
            else "The larger model diverged, so that the prediction was not tested; lower the learning rate."
        )
    return found


def rows(result: ScaleResult) -> list[tuple[str, ...]]:
    """Parameters, tokens, mean measured loss, loss of the law, and how far that is off."""
    found = []
    for tested, losses in ((False, losses_of(result)), (True, losses_of(result, tested=True))):
        for (parameters, tokens), measured in losses.items():
            fitted, mean = result.fitted.law.loss(parameters, tokens), fmean(measured)
            off = f"{fitted / mean - 1:+.2%}" if math.isfinite(mean) else "diverged"
            found.append(
                (f"{parameters:,}", f"{tokens:,}", f"{mean:.4f}", f"{fitted:.4f}", off, "yes" if tested else "")
            )
    return found


COLUMNS = ("parameters", "tokens", "loss", "law", "off", "predicted")
BUDGET_COLUMNS = ("FLOPs", "parameters", "tokens", "loss")
CONSTANT_COLUMNS = ("constant", "value", "95 % interval, low", "high")


def losses_of(result: ScaleResult, tested: bool = False) -> Losses:
    """The losses of the ladder, or of the larger model."""
    found: Losses = {}
    for one in result.tested if tested else result.trained:
        found.setdefault((one.rung.parameters, one.rung.tokens), []).append(one.outcome.loss)
    return found


def charts(result: ScaleResult) -> list[ChartSection]:
    """Loss against parameters and against tokens with the fitted curves, and prediction against result."""
    losses = losses_of(result)
    law, target = result.fitted.law, (result.target.parameters, result.target.tokens)
    sections = [
        _curves(result, 0, losses, lambda n, d: law.loss(n, d), target),
        _curves(result, 1, losses, lambda d, n: law.loss(n, d), target),
    ]
    value, low, high = result.prediction
    named = [("prediction", value), ("lower end of its 95 % interval", low), ("upper end", high)]
    named += [(f"result, seed {n + 1}", one.outcome.loss) for n, one in enumerate(result.tested)]
    sections.append(
        ChartSection(
            "Prediction and result",
            f"The loss of {target[0]:,} parameters after {target[1]:,} tokens, nats per token. The prediction was "
            "written before this model was trained. The interval has the uncertainty of the law and the spread of one "
            "training.",
            (),
            Axes("", "validation loss"),
            named=[(name, one) for name, one in named if math.isfinite(one)],
            line=value,
        )
    )
    return sections


def _curves(
    result: ScaleResult, along: int, losses: Losses, law: Callable[[float, float], float], target: tuple[int, int]
) -> ChartSection:
    """Measured and fitted losses along parameters (0) or tokens (1), a color for each value of the other."""
    others = sorted({point[1 - along] for point in losses})
    names = ("parameters", "tokens") if along == 0 else ("tokens", "parameters")
    series: list[Series] = []
    for color, other in enumerate(others):
        measured = sorted((math.log2(p[along]), fmean(found)) for p, found in losses.items() if p[1 - along] == other)
        measured = [(x, y) for x, y in measured if math.isfinite(y)]
        last = target[along] if other == target[1 - along] else 0
        ends = [x for x, _ in measured] + ([math.log2(last)] if last else [])
        if not ends:
            continue
        places = [min(ends) + (max(ends) - min(ends)) * n / (CURVE - 1) for n in range(CURVE)]
        series.append(Series(f"{count(other)} {names[1]}", measured, color, marks=True))
        series.append(Series("law", [(x, law(2**x, other)) for x in places], color + DASHED))
    for (parameters, tokens), found in losses_of(result, tested=True).items():
        if math.isfinite(fmean(found)):
            x = math.log2((parameters, tokens)[along])
            series.append(Series("larger model", [(x, fmean(found))], len(others), marks=True))
    return ChartSection(
        f"Loss against {names[0]}",
        f"Dots: measured validation losses, means over seeds. Dashed: the law. The horizontal axis is the binary "
        f"logarithm of the number of {names[0]}.",
        series,
        Axes(f"log2 of {names[0]}", "validation loss, nats per token"),
        legend=[one for one in series if one.color < DASHED],
        columns=COLUMNS,
        rows=rows(result),
    )


def optimal_rows(result: ScaleResult) -> list[tuple[str, ...]]:
    """The compute-optimal sizes of some budgets."""
    return [(unit(flops, "FLOP"), count(n), count(d), f"{loss:.4f}") for flops, n, d, loss in result.optimal()]


def page(recipe: str, ladder: Ladder, result: ScaleResult) -> str:
    """The whole document."""
    constants = [(name, *(f"{x:.4g}" for x in result.fitted.interval(name))) for name in Law._fields]
    parts = [
        html.heading(f"The scaling law of {recipe}", "loss = E + A/N^a + B/D^b, fitted to small models"),
        html.paragraphs(words(ladder, result)),
        *(chart_section(chart) for chart in charts(result)),
        html.section("The constants", "", html.table(CONSTANT_COLUMNS, constants, left=1)),
        html.section(
            "Compute-optimal sizes",
            "The size and length with the lowest loss of the law at 6 N D FLOPs. Beyond the sizes and lengths that "
            "were trained, and more so beyond one reading of the text, these are extrapolations.",
            html.table(BUDGET_COLUMNS, optimal_rows(result)),
        ),
    ]
    return html.page(f"scale {recipe}", parts)


def write_page(recipe: str, ladder: Ladder, result: ScaleResult, folder: Path) -> Path:
    """Write ``scale.html`` and ``scale.json`` into the folder; return the path of the page."""
    record = json.dumps({"recipe": recipe, **result.record()}, indent=1)
    replace_files(folder, {"scale.json": record, "scale.html": page(recipe, ladder, result)})
    return folder / "scale.html"


def in_columns(columns: Sequence[str], table: Sequence[Sequence[str]]) -> list[str]:
    """A table for the terminal, every column as wide as its longest cell, aligned to the right."""
    widths = [max(map(len, column)) for column in zip(columns, *table, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (columns, *table)]
