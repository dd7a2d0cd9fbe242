"""The report of a run as one HTML page, written at the end of training or by `regard report`."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path

from regard.config.parts import with_options
from regard.pages import html
from regard.pages.html import chart_section, folded, key_values, section, table
from regard.pages.numbers import count, duration, plural, unit
from regard.report import figures
from regard.report.config_diff import flatten, format_value
from regard.report.facts import Facts, Recipe, gather
from regard.report.trend import best_validation, tail
from regard.report.words import next_step, over_tail, summary
from regard.runs import Run
from regard.runs.asked import ASKED
from regard.runs.disk import JsonObject, replace_file
from regard.runs.paths import FOLDER
from regard.runs.waiting import waiting

FILE = "report.html"
SAMPLES = 6
#: The share of the training time that the loss by position may take at the end of a training, and the seconds of a
#: budget that are left for the rest of the report and the end of the process.
SHARE, RESERVE = 0.05, 0.8


def write(run: Run, facts: Facts, out: Path | None = None) -> Path:
    """Write the report atomically into the run folder, or to the file ``out``; return its path."""
    path = run.file(FILE) if out is None else out
    replace_file(path, page(facts).encode())
    return path


def reserved(seconds: float) -> float:
    """How much of a budget of so many ``seconds`` is left for the report."""
    return RESERVE + 0.01 * seconds


@dataclass
class Deadline:
    """When the budget of a training is over, which is known at its end: a ``time.perf_counter()``."""

    until: float | None = None

    def seconds(self, trained: float) -> float:
        """How long the loss by position may take after ``trained`` seconds of training."""
        most = SHARE * trained
        return most if self.until is None else min(most, max(0.0, self.until - RESERVE - time.perf_counter()))


@contextmanager
def report_at_end(run: Run, recipe: Recipe | None = None) -> Iterator[Deadline]:
    """Write the report when the training inside this context ends, also after a signal or an error.

    A report that fails prints a line to stderr and does not fail the training. It reads less text than that of `regard
    report` after a short training, and whatever fits before the deadline.
    """
    before, deadline = run.metrics(), Deadline()
    try:
        yield deadline
    except Exception:
        if run.metrics() != before:  # else training never began: the run folder stays as it was
            _try_to_write(run, recipe, deadline)
        raise
    _try_to_write(run, recipe, deadline)


def _try_to_write(run: Run, recipe: Recipe | None, deadline: Deadline) -> None:
    try:
        with waiting("writing the report"):
            trained = max((float(record.get("seconds", 0.0)) for record in run.metrics()), default=0.0)
            write(run, gather(run, recipe, deadline.seconds(trained)))
    except Exception as problem:
        why = f"{type(problem).__name__}: {problem}"
        print(
            f"the report could not be written ({why}); try: regard report {run.path}{with_options()}", file=sys.stderr
        )


def page(facts: Facts) -> str:
    """The whole document."""
    parts = [heading(facts), tiles(facts), lead(facts), doctor(facts), losses(facts), samples(facts)]
    parts += [alignments(facts), maps(facts), chart_section(figures.entropy_chart(facts)), positions(facts)]
    parts += [
        chart_section(figures.gradient_chart(facts)),
        cost(facts),
        config(facts),
        environment(facts),
        notes(facts),
    ]
    return html.page(facts.name, parts, facts.path)


def heading(facts: Facts) -> str:
    """Name, recipe, date, machine."""
    recipe = f"recipe {facts.recipe}"
    if facts.changes:
        recipe += f" with {plural(len(facts.changes), 'changed setting')}"
    about = (recipe, facts.date, facts.environment.get("device"))
    return html.heading(facts.name, " · ".join(str(item) for item in about if item))


def tiles(facts: Facts) -> str:
    """The main figures."""
    shown: list[tuple[str, str]] = []
    if facts.validation:
        step, best = best_validation(facts.validation)
        error = facts.validation_errors.get(step)
        margin = "" if error is None else f" (± {1.96 * error:.4f})"  # a tile is too narrow for both in large print
        shown.append((f"{best:.4f}", f"best validation loss{margin}"))
    for name, value in list(facts.judged.items())[:1]:  # the parts of it are in the summary
        shown.append((f"{value:.4f}", f"validation {name.replace('_', ' ')}"))
    if facts.loss:
        shown.append((f"{tail(facts.loss):.4f}", f"training loss{over_tail(facts)}"))
    shown.append((f"{facts.step:,}", f"of {facts.steps:,} steps" if facts.step < facts.steps else "steps"))
    if facts.seconds:
        shown.append((duration(facts.seconds), "time"))
    if facts.pace:
        shown.append((count(facts.pace), f"{facts.unit}s per second"))
    if facts.size:
        shown.append((count(facts.size.parameters), "parameters"))
    items = "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in shown)
    return f'<ul class="tiles">{items}</ul>'


def lead(facts: Facts) -> str:
    """The run in words, and what to try next."""
    step = next_step(facts)
    # Lines break between options, never at their hyphens.
    options = " ".join(f"<span>{escape(option)}</span>" for option in re.split(" (?=--)", step.command))
    return html.paragraphs(summary(facts), f'<p class="try">{escape(step.why)}<code>{options}</code></p>')


def doctor(facts: Facts) -> str:
    """The doctor's findings."""
    about = "Each finding with its evidence, the likely cause and what to change."
    return section("Findings of the doctor", about, "".join(finding_card(record) for record in facts.findings))


def finding_card(record: JsonObject) -> str:
    """One record of findings.jsonl."""
    said = {name: escape(str(record.get(name) or "")) for name in ("what", "where", "evidence", "cause", "change")}
    since, step = record.get("since"), record.get("step")
    when = f"step {since:,}" if isinstance(since, int) else ""
    if isinstance(since, int) and isinstance(step, int) and step > since:
        when = f"steps {since:,} to {step:,}"
    place = f" in <code>{said['where']}</code>" if said["where"] else ""
    return (
        f'<article><h3>{said["what"].capitalize()}{place}</h3><p class="about">{when}: {said["evidence"]}.</p>'
        f'<p>Probable cause: {said["cause"]}.</p><p class="try">Try:<code>{said["change"]}</code></p></article>'
    )


def losses(facts: Facts) -> str:
    """Loss and learning rate."""
    faint = "The faint line is the loss of single batches, the solid one a running mean over a tenth of the run. "
    about = faint if figures.has_faint_line(facts) else ""
    about += "In every chart, the pointer shows values, dragging zooms and a double click shows the whole again."
    return section("Loss", about, figures.loss_figure(facts) if facts.loss or facts.validation else "")


def samples(facts: Facts) -> str:
    """Texts that the model generated, from the start to the end of training. Without a problem there is no answer."""
    if facts.generated:
        return ""
    records = facts.samples
    last = len(records) - 1
    kept = sorted({round(i * last / (SAMPLES - 1)) for i in range(SAMPLES)}) if len(records) > SAMPLES else []
    shown = [records[i] for i in kept] or records
    cards = "".join(
        f"<div><h3>Step {int(sample['step']):,}</h3><pre>{escape(str(sample.get('prompt', '')).lstrip())}"
        f"{escape(str(sample.get('text', '')))}</pre></div>"
        for sample in shown
    )
    about = "Generated with the same random numbers each time (temperature 0.8), so that only the model changes."
    if shown and shown[0].get("temperature") == 0:
        about = "The same held-out sentences each time, with the greedy translation (→) and the reference (=)."
    return section("Samples", about, f'<div class="samples">{cards}</div>' if cards else "")


def alignments(facts: Facts) -> str:
    """Which words of the source each word of a translation attends to."""
    drawn = facts.inspection.alignments if facts.inspection else ()
    about = (
        "A row is a word of the translation, a column a word of the source; the color's strength is the attention "
        "weight, the mean over all heads. The small maps below show each head: d1×.2 is head 2 of the cross-attention "
        "of decoder layer 1."
    )
    return section("Alignment", about, "".join(figures.alignment_figure(alignment) for alignment in drawn))


def maps(facts: Facts) -> str:
    """Attention maps."""
    inspection = facts.inspection
    if inspection is None or not inspection.maps:
        return ""
    where = "held-out" if inspection.held_out else "training"
    about = (
        f"Each head at step {inspection.step:,} on the {where} passage below. A row is a query, a column a key; the "
        "color's strength is the square root of the weight, so that small weights are visible. Head 1.2 is the second "
        "of layer 1."
    )
    if len(inspection.heads) > len(inspection.maps):
        about += f" {len(inspection.maps)} of {len(inspection.heads)} heads are drawn."
    return section("Attention maps", about, figures.map_figures(inspection))


def positions(facts: Facts) -> str:
    """The loss by position in the context."""
    losses = facts.inspection.positions if facts.inspection else None
    return chart_section(figures.position_chart(losses)) if losses else ""


def cost(facts: Facts) -> str:
    """Parameters, FLOPs, time."""
    rows: list[tuple[str, str]] = []
    size, formula = facts.size, ""
    if size:
        rows.append(("parameters", f"{size.parameters:,}"))
    if size and size.flops:
        rows.append((f"FLOPs per {facts.unit}, forward and backward", unit(size.flops, "FLOP")))
        rows.append(("total FLOPs", unit(size.flops * facts.tokens, "FLOP")))
        formula = "FLOPs per token = 6 × (weights in matrices): two for each weight forward and four backward."
        if size.attentions:
            formula += f" Attention over a whole context adds 12 × {size.attentions} × width × context."
        if facts.seconds:
            rows.append(("FLOPs per second", unit(size.flops * facts.tokens / facts.seconds, "FLOP/s")))
    rows += [(f"{facts.unit}s", f"{facts.tokens:,}"), ("time", duration(facts.seconds))]
    if facts.pace:
        rows.append((f"{facts.unit}s per second, median", f"{facts.pace:,.0f}"))
    if facts.memory:
        rows.append(("peak memory", f"{facts.memory / 2**30:.2f} GiB"))
    return section("Cost", formula, key_values(rows) + figures.speed_figure(facts))


def config(facts: Facts) -> str:
    """What differs from the defaults, then all settings."""
    first = "<p>All settings have their default values.</p>"
    if facts.unusual:
        texts = [(format_value(d.value), "" if d.default is None else format_value(d.default)) for d in facts.unusual]
        rows = [(d.key, *both) for d, both in zip(facts.unusual, texts, strict=True)]
        first = table(("key", "value", "default"), rows, left=3)
    everything = key_values((key, format_value(value)) for key, value in flatten(facts.config).items())
    return section("Settings that differ from the defaults", "", first + folded("All settings", everything))


def environment(facts: Facts) -> str:
    """Where it ran."""
    # The folder of the start is written relative to that of the run, so it says nothing here.
    known = {key: value for key, value in facts.environment.items() if value is not None and key != FOLDER}
    asked = known.pop(ASKED, None)
    content = key_values((key, format_value(value)) for key, value in known.items()) if known else ""
    if asked is not None:
        content += folded("Requested config", f'<pre class="passage">{escape(str(asked))}</pre>')
    return section("Environment", "", content)


def notes(facts: Facts) -> str:
    """What is missing, and why."""
    items = "".join(f"<li>{escape(note)}</li>" for note in facts.notes)
    return section("Left out", "", f'<ul class="notes">{items}</ul>' if items else "")
