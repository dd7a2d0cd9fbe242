"""The measured outcomes in sentences, as a table and as plain numbers."""

from collections.abc import Sequence

from regard.approximate.measure import Measurement, Sweep
from regard.pages.numbers import join_words
from regard.runs.disk import JsonObject

SMALL = 0.01  # nats per token that count as negligible
COLUMNS = ("attention", "budget", "error", "worst head", "weights moved", "loss", "increase", "tokens/s", "× own")
CAVEAT = (
    "Nothing was retrained: a model that is trained with a mechanism from the start can do far better than one that "
    "gets it after training. These numbers are the cost of a replacement, not a verdict on a mechanism."
)
LEGEND = (
    "error: |replaced - own| / |own| of a layer's outputs against the model's own attention, mean over heads; worst "
    "head: layer.head and its error; weights moved: half the sum of |replaced - own| weights of a row; loss: nats per "
    "token with every layer replaced; increase: over the unchanged model's loss, with its 95% interval over windows; "
    "× own: speed of a forward pass relative to the model's own attention, measured alternately"
)


def by_kind(sweep: Sweep) -> dict[str, list[Measurement]]:
    """The outcomes of each attention."""
    groups: dict[str, list[Measurement]] = {}
    for outcome in sweep.outcomes:
        groups.setdefault(outcome.trial.kind, []).append(outcome)
    return groups


def sentences(sweep: Sweep) -> list[str]:
    """The answer."""
    on = f"{sweep.loss:.4f} nats per token on {sweep.tokens:,} tokens of this text"
    first = f"The model's own attention has a loss of {on}."
    return [first, *(_about(kind, outcomes, sweep.loss) for kind, outcomes in by_kind(sweep).items()), CAVEAT]


def _about(kind: str, outcomes: Sequence[Measurement], exact: float) -> str:
    measured = [o for o in outcomes if not o.refused]
    if not measured:
        return f"{kind} cannot be used in this model: {_reason(outcomes[0].refused)}."
    inside = [o for o in measured if o.loss is not None]
    if not inside:
        ends = f"{measured[0].error:.2f} at {measured[0].trial.budget}"
        if len(measured) > 1:
            ends += f" to {measured[-1].error:.2f} at {measured[-1].trial.budget}"
        fitted = ", with its own parameters fitted to other windows of the text" if measured[0].fitted else ""
        return (
            f"{kind} cannot replace the attention of this model: {_reason(measured[0].not_in_model)}. On the "
            f"non-causal version of the layers (the same queries, keys and values without a mask{fitted}), its error "
            f"goes from {ends}."
        )
    good = next((o for o in inside if o.more(exact) <= SMALL), None)
    if good is not None:
        return f"{kind} costs about {SMALL} nats or less with {_budget(good)}: {_cost(good, exact)}."
    best = min(inside, key=lambda o: o.more(exact))
    return f"{kind} costs more than {SMALL} nats; the least with {_budget(best)}: {_cost(best, exact)}."


def _reason(refusal: str | None) -> str:
    return (refusal or "").split(";")[0]


def _budget(outcome: Measurement) -> str:
    settings = outcome.trial.settings
    return join_words([f"{name} = {value}" for name, value in settings]) if settings else "its defaults"


def _cost(outcome: Measurement, exact: float) -> str:
    change = f"{outcome.more(exact):+.4f} ± {outcome.more_margin:.4f} nats"
    return f"{change} at {outcome.speedup:.2f} times the speed of the model's own attention"


def rows(sweep: Sweep) -> list[tuple[str, ...]]:
    """One row per budget, in the order of ``COLUMNS``."""
    lines = []
    for o in sweep.outcomes:
        name = (o.trial.kind, o.trial.budget)
        if o.refused:
            lines.append((*name, "refused", *("",) * (len(COLUMNS) - 3)))
            continue
        worst = f"{o.worst.layer}.{o.worst.head} {o.worst.error:.3f}"
        measures = (f"{o.error:.3f}" + ("" if o.causal else "*"), worst, f"{o.variation:.3f}")
        inside = ("",) * 4
        if o.loss is not None:
            more = f"{o.more(sweep.loss):+.4f} ± {o.more_margin:.4f}"
            inside = (f"{o.loss:.4f}", more, f"{o.tokens_per_second:,.0f}", f"{o.speedup:.2f}")
        lines.append((*name, *measures, *inside))
    return lines


def table(sweep: Sweep) -> str:
    """The rows for a terminal."""
    lines = [COLUMNS, *rows(sweep)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    sides = "<<" + ">" * (len(COLUMNS) - 2)
    texts = ["  ".join(f"{cell:{s}{w}}" for cell, s, w in zip(line, sides, widths, strict=True)) for line in lines]
    note = ["* on the non-causal version of the layers"] if any(not o.causal for o in sweep.outcomes) else []
    return "\n".join([*(text.rstrip() for text in texts), *note])


def numbers(sweep: Sweep) -> JsonObject:
    """Everything, for the JSON file."""
    outcomes = [
        {
            "attention": o.trial.kind,
            "settings": dict(o.trial.settings),
            "error": o.error if o.heads else None,
            "variation": o.variation if o.heads else None,
            "more": None if o.loss is None else o.more(sweep.loss),
            **{name: value for name, value in vars(o).items() if name != "trial"},
            "heads": [head._asdict() for head in o.heads],
        }
        for o in sweep.outcomes
    ]
    return {"loss": sweep.loss, "tokens": sweep.tokens, "outcomes": outcomes}
