"""The report's figures: each takes the facts and gives HTML, or nothing where a run has nothing to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from regard.look import Head, describe
from regard.look.pictures import align_picture
from regard.look.pictures.align import Alignment
from regard.report.facts import Curve, Facts
from regard.report.inside import Inside, Positions
from regard.report.numbers import count
from regard.report.svg import COLOURS, Axes, Series, chart, lettered_map, map_mask, small_map, thin

WIDE, NARROW = 1000, 330  # pixels; the page shows the one that fits
MANY = 24  # lines; more of them are drawn as one mean per layer
ROWS = 24  # of a table behind a figure


def loss_figure(facts: Facts) -> str:
    """Training and validation loss, and the learning rate below over the same steps."""
    training = [Series("training, each record", thin(facts.loss, 400), 0, faint=True)] if len(facts.loss) > 20 else []
    training.append(Series("training", thin(centred(facts.loss)), 0, marks=len(facts.loss) < 6))
    series = [*training, Series("validation", facts.validation, 1, marks=True)]
    end = max((step for s in series for step, _ in s.points), default=0)
    drawn = drawing(
        series, Axes("step", "loss, nats per token", x_low=0, x_high=end), 330, "Training and validation loss"
    )
    rate = drawing(
        [Series("learning rate", thin(facts.rate, 400), 4)],
        Axes("step", "learning rate", low=0, x_low=0, x_high=end),
        130,
        "Learning rate",
    )
    both = table(("step", "training", "validation", "rate"), _joined(facts.loss, facts.validation, facts.rate))
    return drawn + legend(series) + rate + both


def speed_figure(facts: Facts) -> str:
    """Tokens a second over the run."""
    series = [Series("tokens per second", thin(facts.speed, 200), 2)]
    return drawing(series, Axes("step", "tokens per second", low=0, x_low=0), 160, "Speed")


def gradient_figure(facts: Facts) -> str:
    """The gradient's norm by layer, on a logarithmic axis."""
    series = [Series(name, thin(curve, 150), i) for i, (name, curve) in enumerate(facts.gradients.items())]
    drawn = drawing(series, Axes("step", "gradient norm", log=True, x_low=0), 300, "Gradient norm by layer")
    if not drawn:
        return ""
    return drawn + legend(series) + table(("step", *facts.gradients), _joined(*facts.gradients.values()))


def entropy_figure(facts: Facts) -> str:
    """How widely each head looks, over training."""
    layers = list(dict.fromkeys(name for name, _ in facts.spread))
    few = len(facts.spread) <= MANY
    if few:
        curves = {f"{layers.index(name) + 1}.{head}": curve for (name, head), curve in facts.spread.items()}
        colours = [layers.index(name) for name, _ in facts.spread]
    else:
        curves = {
            f"{i} {layer_name(name)}": _mean([c for (n, _), c in facts.spread.items() if n == name])
            for i, name in enumerate(layers, 1)
        }
        colours = list(range(len(layers)))
    series = [
        Series(name, curve, colour, marks=True) for (name, curve), colour in zip(curves.items(), colours, strict=True)
    ]
    drawn = drawing(
        series, Axes("step", "entropy, share of the greatest", low=0, high=1, x_low=0), 300, "Entropy by head"
    )
    keys = [Series(f"{i + 1} {layer_name(name)}", [], i) for i, name in enumerate(layers)]
    return drawn + legend(keys) + table(("step", *curves), _joined(*curves.values())) if drawn else ""


def layer_name(path: str) -> str:
    """The place of an attention in a model, from its module path.

    >>> [layer_name(path + ".mechanism") for path in ("blocks.0.attention", "encoder.2.attention", "decoder.0.cross")]
    ['layer 1', 'encoder 3', 'decoder 1, to the source']
    """
    stack, *rest = path.split(".")
    number = f" {int(rest[0]) + 1}" if rest and rest[0].isdigit() else ""
    return {"blocks": "layer"}.get(stack, stack) + number + (", to the source" if "cross" in rest else "")


def position_figure(positions: Positions) -> str:
    """The loss at every place of a window."""
    points = [(float(i), loss) for i, loss in enumerate(positions.mean, start=1)]
    band = [(x, y - m, y + m) for (x, y), m in zip(points, positions.margin, strict=True)]
    series = [Series("mean loss, with its 95 % interval", points, 0, band=band)]
    drawn = drawing(series, Axes("place in the window", "loss, nats per token"), 280, "Loss by position")
    rows = [(f"{x:.0f}", f"{y:.4f}", f"±{m:.4f}") for (x, y), m in zip(points, positions.margin, strict=True)]
    return drawn + table(("place", "mean loss", "95 %"), _some(rows))


def map_figures(inside: Inside) -> str:
    """Every head's map: small ones, a layer to a row, and folded by layer those with the text on both axes."""
    heads = {(head.layer, head.head): head for head in inside.heads}
    layers: dict[int, list[int]] = {}
    for layer, head in inside.maps:
        layers.setdefault(layer, []).append(head)
    masks = "".join(map_mask(f"m{n}-{h}", rows) for (n, h), rows in inside.maps.items())
    small = "".join(
        f"<figure>{small_map(f'm{n}-{h}', _title(heads[n, h]))}<figcaption><b>{n}.{h}</b> {describe(heads[n, h])}, "
        f"entropy {heads[n, h].spread:.0%}</figcaption></figure>"
        for n, h in inside.maps
    )
    across = next((n for n in (8, 7, 6, 5, 4, 3, 2) if max(map(len, layers.values())) % n == 0), 4)
    shown = [visible(token) for token in inside.passage]
    large = "".join(_large(layer, [heads[layer, h] for h in found], shown) for layer, found in layers.items())
    names = ("head", "habit", "entropy", "on the token before", "on itself", "on the first token", "greatest weight")
    rows = [
        (f"{h.layer}.{h.head}", describe(h), *(f"{v:.0%}" for v in (h.spread, h.previous, h.own, h.first, h.peak)))
        for h in inside.heads
    ]
    return (
        f'<svg class="masks" aria-hidden="true">{masks}</svg>'
        f'<pre class="passage">{escape("".join(inside.passage))}</pre>'
        f'<div class="maps" style="--across:{across}">{small}</div>{large}{table(names, rows)}'
    )


def alignment_figure(alignment: Alignment) -> str:
    """One alignment, no wider than it needs to be."""
    drawn, wide, high = align_picture.figure(alignment)
    label = escape(alignment.words())
    return (
        f'<div class="scroll"><svg class="align" viewBox="0 -4 {wide:.0f} {high + 8:.0f}" style="width:{wide:.0f}px" '
        f'role="img" aria-label="{label}">{drawn}</svg></div>'
    )


def _large(layer: int, heads: list[Head], letters: list[str]) -> str:
    figures = "".join(
        f'<figure><div class="scroll">{lettered_map(f"m{head.layer}-{head.head}", _title(head), letters)}</div>'
        f"<figcaption><b>{head.layer}.{head.head}</b> {describe(head)}</figcaption></figure>"
        for head in heads
    )
    title = f"Layer {layer}, with the text on both axes"
    return f'<details><summary>{title}</summary><div class="large">{figures}</div></details>'


def visible(token: str) -> str:
    """A token as one sign on an axis.

    >>> [visible(token) for token in ("a", " ", chr(10), "word")]
    ['a', '·', '↵', 'w']
    """
    return {" ": "·", "\n": "↵", "\t": "→", "": "∅"}.get(token) or (token.strip() or "·")[0]


def drawing(series: Sequence[Series], axes: Axes, height: int, title: str) -> str:
    """A chart at two widths, so that its letters are never too small to read."""
    wide = chart(series, axes, WIDE, height, title)
    narrow = chart(series, axes, NARROW, min(height, 240), title)
    return f'<figure><div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>' if wide else ""


def legend(series: Sequence[Series]) -> str:
    """Which colour is what."""
    items = "".join(
        f'<li><i class="c{s.colour % COLOURS}{" faint" if s.faint else ""}{" again" if s.colour >= COLOURS else ""}">'
        f"</i>{escape(s.name)}</li>"
        for s in series
    )
    return f'<ul class="legend">{items}</ul>'


def table(names: Sequence[str], rows: Sequence[Sequence[str]], title: str = "The numbers") -> str:
    """Numbers behind a figure, folded away."""
    head = "".join(f'<th scope="col" class="n">{escape(name)}</th>' for name in names)
    body = "".join("<tr>" + "".join(f'<td class="n">{escape(str(v))}</td>' for v in row) + "</tr>" for row in rows)
    return (
        f'<details><summary>{title}</summary><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def centred(curve: Curve) -> Curve:
    """Each value's mean with its neighbours: a twentieth of the curve on both sides, fewer towards the ends."""
    reach = len(curve) // 20
    found = []
    for i, (step, _) in enumerate(curve):
        near = min(reach, i, len(curve) - 1 - i)
        part = curve[i - near : i + near + 1]
        found.append((step, sum(value for _, value in part) / len(part)))
    return found


def _title(head: Head) -> str:
    return (
        f"Layer {head.layer}, head {head.head}: {describe(head)}; {head.previous:.0%} of the weight on the token "
        f"before, {head.own:.0%} on itself, {head.first:.0%} on the first"
    )


def _joined(*curves: Curve) -> list[tuple[str, ...]]:
    """Curves as rows by step, thinned evenly."""
    columns = [dict(curve) for curve in curves]
    steps = sorted({step for column in columns for step in column})
    rare = {step for column in columns if len(column) < len(steps) / 2 for step in column}
    every = max(1, math.ceil(len(steps) / ROWS))
    kept = [step for i, step in enumerate(steps) if i % every == 0 or step in rare or step == steps[-1]]
    rows = [(count(step), *(f"{c[step]:.4g}" if step in c else "" for c in columns)) for step in kept]
    return rows if len(rows) <= 2 * ROWS else _some(rows)


def _some(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    every = max(1, math.ceil(len(rows) / ROWS))
    return [row for i, row in enumerate(rows) if i % every == 0 or i == len(rows) - 1]


def _mean(curves: list[Curve]) -> Curve:
    steps = [step for step, _ in curves[0]]
    columns = [dict(curve) for curve in curves]
    return [(step, sum(c[step] for c in columns) / len(columns)) for step in steps if all(step in c for c in columns)]
