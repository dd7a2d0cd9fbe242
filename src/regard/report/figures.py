"""The figures of the report: each takes the facts and returns HTML, or an empty string if there is nothing to show."""

import json
from dataclasses import replace
from html import escape

from regard.look import Head, describe
from regard.look.capture.layer_names import layer_names
from regard.look.pictures import align
from regard.look.pictures.align import Alignment
from regard.pages.charts import Axes, Series, thin
from regard.pages.html import ChartSection, figure, folded, legend, numbers_table, point_table
from regard.pages.svg import attention_map, define_map, tag
from regard.report.facts import Curve, Facts
from regard.report.inspection import Inspection, PositionLosses

LETTERS = 9  # of a token on an axis
MANY = 24  # lines; more of them are drawn as one mean per layer


def has_faint_line(facts: Facts) -> bool:
    """Whether the loss has enough records to be drawn besides their running mean."""
    return len(facts.loss) > 20


def loss_figure(facts: Facts) -> str:
    """Training and validation loss, and the learning rate below over the same steps."""
    training = [Series("training, each record", thin(facts.loss, 400), 0, faint=True)] if has_faint_line(facts) else []
    training.append(Series("training", thin(running_mean(facts.loss)), 0, marks=len(facts.loss) < 6))
    errors = [(step, loss, 1.96 * facts.validation_errors.get(step, 0.0)) for step, loss in facts.validation]
    band = [(step, loss - half, loss + half) for step, loss, half in errors] if facts.validation_errors else ()
    name = "validation, with its 95% interval" if band else "validation"
    series = [*training, Series(name, facts.validation, 1, marks=True, band=band)]
    end = max((step for s in series for step, _ in s.points), default=0)
    loss = Axes("step", f"loss, {facts.loss_unit}", x_low=0, x_high=end)
    rate = Axes("step", "learning rate", low=0, x_low=0, x_high=end)
    return (
        figure(series, loss, 330, "Training and validation loss")
        + legend(series)
        + figure([Series("learning rate", thin(facts.rate, 400), 4)], rate, 130, "Learning rate")
        + point_table("step", {"training": facts.loss, "validation": facts.validation, "rate": facts.rate})
    )


def speed_figure(facts: Facts) -> str:
    """Tokens per second over the run."""
    what = f"{facts.unit}s per second"
    return figure([Series(what, thin(facts.speed, 200), 2)], Axes("step", what, low=0, x_low=0), 160, "Speed")


def gradient_chart(facts: Facts) -> ChartSection:
    """The gradient norm by layer."""
    about = "The norm of each layer's gradient before clipping, on a logarithmic axis."
    series = [Series(layer_name(name), thin(curve, 150), i) for i, (name, curve) in enumerate(facts.gradients.items())]
    axes = Axes("step", "gradient norm", log=True, x_low=0)
    return ChartSection("Gradient norm by layer", about, series, axes, 300)


def entropy_chart(facts: Facts) -> ChartSection:
    """The relative attention entropy of each head over training; of each layer if there are many heads."""
    about = (
        "The entropy of a head's weights on one held-out passage, as a share of the maximum: at 1 all weights are "
        "equal, at 0 all weight is on one token. One line per head."
    )
    layers = list(dict.fromkeys(name for name, _ in facts.spread))
    names = layer_names(layers)
    explained = [one.name if one.name == f"layer {one.short}" else f"{one.short}: {one.name}" for one in names]
    keys = [Series(name, [], i) for i, name in enumerate(explained)]
    if len(facts.spread) <= MANY:
        numbered = [(layers.index(name), head, curve) for (name, head), curve in facts.spread.items()]
        series = [Series(f"{names[i].short}.{head}", curve, i, marks=True) for i, head, curve in numbered]
    else:
        heads = [[curve for (name, _), curve in facts.spread.items() if name == layer] for layer in layers]
        series = [replace(key, points=_mean(curves), marks=True) for key, curves in zip(keys, heads, strict=True)]
    axes = Axes("step", "entropy, share of the maximum", low=0, high=1, x_low=0)
    return ChartSection("Attention entropy", about, series, axes, 300, legend=keys)


def layer_name(path: str) -> str:
    """The layer of a module, from its path, with the name that it has on the page of `regard serve`.

    >>> [layer_name(path) for path in ("blocks.0", "encoder.2", "embed")]
    ['layer 1', 'encoder layer 3', 'embed']
    """
    stack, *rest = path.split(".")
    if not rest or not rest[0].isdigit():
        return stack
    return f"{stack} layer {int(rest[0]) + 1}".removeprefix("blocks ")


def position_chart(losses: PositionLosses) -> ChartSection:
    """The loss at every position of a window."""
    share = "all" if losses.windows == losses.of else f"{losses.windows:,} evenly spaced of the"
    about = (
        f"The mean loss at each position over {share} {losses.of:,} whole validation windows, with its 95% interval "
        "over windows. The further to the right, the more context the model has."
    )
    points = [(float(i), loss) for i, loss in enumerate(losses.mean, start=1)]
    band = [(x, loss - margin, loss + margin) for (x, loss), margin in zip(points, losses.margin, strict=True)]
    series = [Series("mean loss, with its 95% interval", points, band=band)]
    return ChartSection("Loss by position", about, series, Axes("position in the window", "loss, nats per token"), 280)


def map_figures(inspection: Inspection) -> str:
    """The attention map of every head: small ones, a layer per row, and large ones with the text on both axes."""
    drawn = [head for head in inspection.heads if (head.layer, head.head) in inspection.maps]
    layers: dict[int, list[Head]] = {}
    for head in drawn:
        layers.setdefault(head.layer, []).append(head)
    masks = "".join(define_map(_map_name(head), inspection.maps[head.layer, head.head]) for head in drawn)
    small = "".join(
        _map_figure(head, attention_map(_map_name(head), _title(head)), f", entropy {head.spread:.0%}")
        for head in drawn
    )
    across = next((n for n in (8, 7, 6, 5, 4, 3, 2) if max(map(len, layers.values())) % n == 0), 4)
    tokens = escape(json.dumps(inspection.passage))
    letters = [visible(token) for token in inspection.passage]
    large = "".join(_large(heads, letters) for heads in layers.values())
    names = ("head", "kind", "entropy", "on the previous token", "on itself", "on the first token", "maximum weight")
    rows = [
        (h.label, describe(h), *(f"{v:.0%}" for v in (h.spread, h.previous, h.own, h.first, h.peak)))
        for h in inspection.heads
    ]
    return (
        f'<svg class="masks" aria-hidden="true">{masks}</svg>'
        f'<pre class="passage">{escape("".join(inspection.passage))}</pre>'
        f'<div data-tokens="{tokens}"><div class="maps" style="--across:{across}">{small}</div>{large}</div>'
        f"{numbers_table(names, rows)}"
    )


def alignment_figure(alignment: Alignment) -> str:
    """One alignment at its natural width."""
    drawn, wide, high = align.figure(alignment)
    box = {"viewBox": f"0 -4 {wide:.0f} {high + 8:.0f}", "style": f"width:{wide:.0f}px"}
    picture = tag("svg", drawn, class_="align", **box, role="img", aria_label=alignment.words())
    return tag("div", picture, class_="scroll")


def visible(token: str) -> str:
    """A token on an axis, at most nine characters.

    >>> [visible(token) for token in ("a", " ", chr(10), " word", "incomprehensible")]
    ['a', '·', '↵', '·word', 'incompre…']
    """
    shown = token.replace(" ", "·").replace("\n", "↵").replace("\t", "→") or "∅"
    return shown if len(shown) <= LETTERS else f"{shown[: LETTERS - 1]}…"


def running_mean(curve: Curve) -> Curve:
    """Each value's mean with its neighbors: a twentieth of the curve on both sides, fewer towards the ends."""
    reach = len(curve) // 20
    smoothed = []
    for i, (step, _) in enumerate(curve):
        near = min(reach, i, len(curve) - 1 - i)
        part = curve[i - near : i + near + 1]
        smoothed.append((step, sum(value for _, value in part) / len(part)))
    return smoothed


def _large(heads: list[Head], letters: list[str]) -> str:
    maps = "".join(
        _map_figure(head, tag("div", attention_map(_map_name(head), _title(head), letters), class_="scroll"))
        for head in heads
    )
    return folded(f"{_capitalized(heads[0])}, with the text on both axes", f'<div class="large">{maps}</div>')


def _map_figure(head: Head, drawn: str, more: str = "") -> str:
    caption = f"<figcaption><b>{head.label}</b> {describe(head)}{more}</figcaption>"
    return f"<figure>{drawn}{caption}</figure>"


def _map_name(head: Head) -> str:
    return f"m{head.layer}-{head.head}"


def _title(head: Head) -> str:
    return (
        f"{_capitalized(head)}, head {head.head}: {describe(head)}; {head.previous:.0%} of the weight on the previous "
        f"token, {head.own:.0%} on the token itself, {head.first:.0%} on the first token"
    )


def _capitalized(head: Head) -> str:
    return head.layer_name.name.capitalize()


def _mean(curves: list[Curve]) -> Curve:
    steps = [step for step, _ in curves[0]]
    columns = [dict(curve) for curve in curves]
    return [(step, sum(c[step] for c in columns) / len(columns)) for step in steps if all(step in c for c in columns)]
