"""The report as one HTML page: no script, nothing fetched, every text escaped."""

from __future__ import annotations

import re
from html import escape

from regard import __version__
from regard.report import figures
from regard.report.differ import flat, spelled
from regard.report.facts import Facts
from regard.report.findings import findings as cards
from regard.report.numbers import count, duration, unit
from regard.report.style import CSS
from regard.report.trend import best_validation, tail
from regard.report.words import next_step, paragraphs

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SAMPLES = 6


def page(facts: Facts) -> str:
    """The whole document."""
    sections = (
        heading,
        tiles,
        lead,
        doctor,
        losses,
        samples,
        alignments,
        maps,
        entropy,
        positions,
        gradients,
        cost,
        config,
    )
    parts = [part(facts) for part in (*sections, environment, notes)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(facts.name)} · regard</title><style>{CSS}</style></head><body><main>"
        f"{''.join(parts)}<footer>Made by regard {escape(__version__)} from {escape(facts.path)}.</footer>"
        "</main></body></html>\n"
    )


def heading(facts: Facts) -> str:
    """Name, recipe, date, machine."""
    changed = [change.key for change in facts.changes]
    recipe = f"recipe {facts.recipe}"
    if changed:
        recipe += f" with {len(changed)} other setting{'s' if len(changed) > 1 else ''}"
    machine = facts.environment.get("device")
    about = " · ".join(str(item) for item in (recipe, facts.date, machine) if item)
    return f'<header><h1>{escape(facts.name)}</h1><p class="sub">{escape(about)}</p></header>'


def tiles(facts: Facts) -> str:
    """The figures one looks for first."""
    found: list[tuple[str, str]] = []
    if facts.validation:
        found.append((f"{best_validation(facts.validation)[1]:.4f}", "best validation loss"))
    if facts.loss:
        found.append((f"{tail(facts.loss):.4f}", "training loss"))
    found.append((f"{facts.step:,}", f"of {facts.steps:,} steps" if facts.step < facts.steps else "steps"))
    if facts.seconds:
        found.append((duration(facts.seconds), "time"))
    if facts.pace:
        found.append((count(facts.pace), "tokens per second"))
    if facts.size:
        found.append((count(facts.size.parameters), "parameters"))
    items = "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in found)
    return f'<ul class="tiles">{items}</ul>'


def doctor(facts: Facts) -> str:
    """What the doctor found."""
    about = "Each with what shows it, the likely cause and what to change."
    return section("What is wrong", about, cards(facts.findings))


def lead(facts: Facts) -> str:
    """The run in words, and what to try next."""
    step = next_step(facts)
    # A line breaks between options, never behind their hyphens.
    options = " ".join(f"<span>{escape(option)}</span>" for option in re.split(" (?=--)", step.command))
    return (
        f'<div class="lead">{"".join(f"<p>{escape(text)}</p>" for text in paragraphs(facts))}'
        f'<p class="try">{escape(step.why)}<code>{options}</code></p></div>'
    )


def losses(facts: Facts) -> str:
    """Loss and learning rate."""
    drawn = figures.loss_figure(facts) if facts.loss or facts.validation else ""
    return section(
        "Loss",
        "The faint line is the loss of single batches, the strong one a running mean over a tenth of the run.",
        drawn,
    )


def samples(facts: Facts) -> str:
    """What the model wrote, from the start to the end."""
    found = facts.samples
    kept = sorted({round(i * (len(found) - 1) / (SAMPLES - 1)) for i in range(SAMPLES)}) if len(found) > SAMPLES else []
    shown = [found[i] for i in kept] or found
    cards = "".join(
        f"<div><h3>Step {int(sample['step']):,}</h3><pre>{escape(str(sample.get('prompt', '')).lstrip())}"
        f"{escape(str(sample.get('text', '')))}</pre></div>"
        for sample in shown
    )
    about = "The same draws each time (temperature 0.8), so that what changes is the model."
    if shown and shown[0].get("temperature") == 0:
        about = "The same held-out sentences each time, with the likeliest translation (→) and the reference (=)."
    return section("What it writes", about, f'<div class="samples">{cards}</div>' if cards else "")


def alignments(facts: Facts) -> str:
    """Which words of the source each word of a translation was written from."""
    found = facts.inside.alignments if facts.inside else ()
    about = (
        "A row is a word that was written, a column a word that was read; the colour's strength is the attention "
        "weight, the mean over all heads. The small maps below are the heads one by one."
    )
    return section("Alignment", about, "".join(figures.alignment_figure(one) for one in found))


def maps(facts: Facts) -> str:
    """Where heads look."""
    inside = facts.inside
    if inside is None or not inside.maps:
        return ""
    where = "held-out" if inside.held_out else "training"
    about = (
        f"Each head at step {inside.step:,} on the {where} passage below. A row is a token that looks, a column one "
        "that is looked at; the colour's strength is the square root of the weight, so that small weights show. "
        "Head 1.2 is the second of layer 1."
    )
    if len(inside.heads) > len(inside.maps):
        about += f" {len(inside.maps)} of {len(inside.heads)} heads are drawn."
    return section("Where each head looks", about, figures.map_figures(inside))


def entropy(facts: Facts) -> str:
    """How widely heads look, over training."""
    about = (
        "The entropy of a head's weights on one held-out passage, as a share of the greatest possible: at 100 % it "
        "looks everywhere alike, at 0 at one token. One line is one head."
    )
    return section("How widely each head looks", about, figures.entropy_figure(facts))


def positions(facts: Facts) -> str:
    """What context is worth."""
    found = facts.inside.positions if facts.inside else None
    if found is None:
        return ""
    all_of = "all" if found.windows == found.of else f"{found.windows:,} evenly spread of the"
    about = (
        f"The mean loss at each place over {all_of} {found.of:,} whole validation windows, with its 95 % interval over "
        "windows. The further to the right, the more text the model has seen."
    )
    return section("What context is worth", about, figures.position_figure(found))


def gradients(facts: Facts) -> str:
    """Gradient norms."""
    about = "The norm of each layer's part of the gradient before clipping; the axis is logarithmic."
    return section("Gradients by layer", about, figures.gradient_figure(facts))


def cost(facts: Facts) -> str:
    """Parameters, FLOPs, time."""
    rows: list[tuple[str, str]] = []
    size, formula = facts.size, ""
    if size:
        rows.append(("parameters", f"{size.parameters:,}"))
    if size and size.flops:
        rows.append(("FLOPs per token, forward and backward", unit(size.flops, "FLOP")))
        rows.append(("FLOPs in all", unit(size.flops * facts.tokens, "FLOP")))
        formula = "FLOPs per token = 6 × (weights in matrices): two for each weight forward and four backward."
        if size.attentions:
            formula += f" Attention over a whole context: 12 × {size.attentions} × width × context more."
        if facts.seconds:
            rows.append(("FLOPs per second", unit(size.flops * facts.tokens / facts.seconds, "FLOP/s")))
    rows += [("tokens", f"{facts.tokens:,}"), ("time", duration(facts.seconds))]
    if facts.pace:
        rows.append(("tokens per second, median", f"{facts.pace:,.0f}"))
    if facts.memory:
        rows.append(("most memory", f"{facts.memory / 2**30:.2f} GiB"))
    return section("Cost", formula, pairs(rows) + figures.speed_figure(facts))


def config(facts: Facts) -> str:
    """What differs from the defaults, then everything."""
    unusual = [(d.key, spelled(d.value), "" if d.default is None else spelled(d.default)) for d in facts.unusual]
    rows = "".join(
        f"<tr><td><code>{escape(k)}</code></td><td><code>{escape(v)}</code></td><td>{escape(d)}</td></tr>"
        for k, v, d in unusual
    )
    head = '<thead><tr><th scope="col">key</th><th scope="col">value</th><th scope="col">default</th></tr></thead>'
    first = f'<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>' if rows else "<p>Nothing.</p>"
    everything = pairs([(key, spelled(value)) for key, value in flat(facts.config).items()])
    folded = f"<details><summary>All settings</summary>{everything}</details>"
    return section("Settings that differ from the defaults", "", first + folded)


def environment(facts: Facts) -> str:
    """Where it ran."""
    rows = [(key, spelled(value)) for key, value in facts.environment.items() if value is not None]
    return section("Environment", "", pairs(rows) if rows else "")


def notes(facts: Facts) -> str:
    """What is missing, and why."""
    items = "".join(f"<li>{escape(note)}</li>" for note in facts.notes)
    return section("Left out", "", f'<ul class="notes">{items}</ul>' if items else "")


def section(title: str, about: str, content: str) -> str:
    """A titled part; nothing where it has no content."""
    if not content:
        return ""
    told = f'<p class="about">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>{told}{content}</section>"


def pairs(rows: list[tuple[str, str]]) -> str:
    """A table of two columns."""
    body = "".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape(v)}</td></tr>' for k, v in rows)
    return f'<div class="scroll"><table><tbody>{body}</tbody></table></div>'
