"""The result of a search in words, as a page with figures, and as a TOML file of the best configuration."""

from __future__ import annotations

import json
import math
from pathlib import Path

from regard.config import to_toml
from regard.measure.interval import Mean
from regard.pages import html
from regard.pages.charts import Axes, Series
from regard.pages.html import ChartSection, chart_section
from regard.runs.disk import replace_files
from regard.tune.result import Stage, Tried, TuneResult
from regard.tune.space import OptionRange

BEST = "best.toml"
COLUMNS = ("stage", "trial", "values", "validation loss")


def words(result: TuneResult) -> list[str]:
    """What was found."""
    every = [one for stage in result.stages for one in stage.tried]
    pruned = sum(one.state == "pruned" for one in every)
    trained = len(every) - len(result.stages) + 1  # the first trial of a later stage is known
    found = [f"{trained} trials in {len(result.stages)} stages, of which {pruned} ended before their last step."]
    if result.comparison is None:
        return [*found, "No trial had a lower loss than the default: the recipe stays as it is."]
    changes = "; ".join(
        f"{key} {after:.4g} (default {before:.4g})" for key, (before, after) in result.changes().items()
    )
    found.append(f"The best of them: {changes}.")
    gain, before, after = result.comparison.gain, *map(Mean.of, result.comparison)
    verdict = (
        "The best configuration beats the default."
        if result.comparison.beats
        else "It did not beat the default: the 95 % interval of the difference contains 0."
        if gain.value + gain.error > 0 or not math.isfinite(gain.error)
        else "It did not beat the default: it is worse. The trials chose it by the noise of one seed."
    )
    found.append(
        f"With {len(result.comparison.default)} fresh seeds and the same FLOPs the default has a validation loss of "
        f"{before}, the best configuration {after}; the gain is {gain}. {verdict}"
    )
    if result.importance:
        listed = ", ".join(f"{key} {share:.0%}" for key, share in result.importance.items())
        found.append(f"Importance of the keys: {listed}.")
    return found


def charts(result: TuneResult) -> list[ChartSection]:
    """The losses in the order of the trials, the importance of keys, and the loss against each key."""
    sections = [history(result)]
    if result.importance:
        sections.append(
            ChartSection(
                "Importance",
                "PED-ANOVA (Watanabe et al. 2023): how much the values of a key in the best quarter of the trials "
                "differ from those in all of them. It depends on the ranges, is rough with few trials, and "
                "is shared with keys of later stages, whose default values all trials of earlier stages have.",
                (),
                Axes("", "importance"),
                named=list(result.importance.items()),
            )
        )
    sections += [against(stage, key) for stage in result.stages for key in stage.space]
    return sections


def history(result: TuneResult) -> ChartSection:
    """Every finished trial, and the best so far."""
    finished = [
        (color, one) for color, stage in enumerate(result.stages) for one in own_trials(stage, first=color == 0)
    ]
    series: list[Series] = []
    best: list[tuple[float, float]] = []
    for number, (color, one) in enumerate(finished):
        if one.loss is not None:
            series.append(Series(f"{one.stage}, trial {one.number}", [(number, one.loss)], color, marks=True))
            best.append((number, min(one.loss, best[-1][1] if best else math.inf)))
    series.append(Series("best so far", best, len(result.stages)))
    rows = [(one.stage, str(one.number), listed(one), outcome(one)) for _, one in finished]
    legend = [Series(stage.name, (), color) for color, stage in enumerate(result.stages)]
    return ChartSection(
        "Trials",
        "The validation loss of each trial that was not ended early, all with the same FLOPs and the same seed. Trial "
        "0 is the recipe's own default.",
        series,
        Axes("trial", "validation loss"),
        legend=[*legend, series[-1]],
        columns=COLUMNS,
        rows=rows,
    )


def against(stage: Stage, key: str) -> ChartSection:
    """The losses of a stage against one of its keys."""
    space = stage.space[key]
    log = isinstance(space, OptionRange) and space.log
    points = [(math.log2(one.values[key]) if log else one.values[key], one) for one in stage.tried]
    return ChartSection(
        f"Loss against {key}",
        "Every trial of its stage; the other keys of the stage differ too." if len(stage.space) > 1 else "",
        [Series(f"trial {one.number}", [(x, one.loss)], marks=True) for x, one in points if one.loss is not None],
        Axes(f"log2 of {key}" if log else key, "validation loss"),
        height=240,
        legend=(),
        columns=COLUMNS,
        rows=[(one.stage, str(one.number), listed(one), outcome(one)) for _, one in points],
    )


def own_trials(stage: Stage, first: bool) -> list[Tried]:
    """The trials of a stage that it trained; the first one of a later stage is the best of the one before."""
    return list(stage.tried[0 if first else 1 :])


def listed(one: Tried) -> str:
    """The values of a trial."""
    return ", ".join(f"{key} {value:.4g}" for key, value in one.values.items())


def outcome(one: Tried) -> str:
    """The loss of a trial, or how it ended."""
    return one.state if one.loss is None else f"{one.loss:.4f}"


def page(recipe: str, result: TuneResult) -> str:
    """The whole document."""
    parts = [
        html.heading(
            f"Hyperparameters of {recipe}", "searched in the order: " + ", ".join(x.name for x in result.stages)
        ),
        html.paragraphs(words(result)),
        *(chart_section(chart) for chart in charts(result)),
    ]
    return html.page(f"tune {recipe}", parts)


def write_page(recipe: str, result: TuneResult, folder: Path) -> Path:
    """Write ``tune.html``, ``tune.json`` and ``best.toml`` into the folder; return the path of the page."""
    record = json.dumps({"recipe": recipe, **result.record()}, indent=1)
    files = {"tune.json": record, "tune.html": page(recipe, result), BEST: to_toml(result.best)}
    replace_files(folder, files)
    return folder / "tune.html"
