"""What the meter found, in sentences, in a table and as plain numbers. All of it follows from the outcomes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.approximate.measure import Meter, Outcome
from regard.report.numbers import listed

SMALL = 0.01  # nats per token that may be called no loss worth the name
COLUMNS = ("attention", "budget", "error", "worst head", "weights moved", "loss", "more", "tokens/s", "× exact")
CAVEAT = (
    "Nothing was trained anew: a model that is trained with a mechanism from the start can do far better than one that "
    "gets it overnight. These numbers are what an exchange costs, not what a mechanism is worth."
)
LEGEND = (
    "error: |found - exact| / |exact| of a layer's outputs, mean over heads; worst head: layer.head and its error; "
    "weights moved: half the sum of |found - exact| weights of a row; loss: nats per token with every layer exchanged; "
    "more: than exact, with its 95 % interval over windows; × exact: speed of a forward pass against exact attention, "
    "measured in turns"
)


def kinds(meter: Meter) -> dict[str, list[Outcome]]:
    """The outcomes of each attention."""
    found: dict[str, list[Outcome]] = {}
    for outcome in meter.outcomes:
        found.setdefault(outcome.trial.kind, []).append(outcome)
    return found


def sentences(meter: Meter) -> list[str]:
    """The answer."""
    first = f"Exact attention has a loss of {meter.loss:.4f} nats per token on {meter.tokens:,} tokens of this text."
    return [first, *(_about(kind, outcomes, meter.loss) for kind, outcomes in kinds(meter).items()), CAVEAT]


def _about(kind: str, outcomes: Sequence[Outcome], exact: float) -> str:
    measured = [one for one in outcomes if not one.refused]
    if not measured:
        return f"{kind} cannot be tried on this model: {outcomes[0].refused.split(';')[0]}."
    inside = [one for one in measured if one.loss is not None]
    if not inside:
        ends = f"{measured[0].error:.2f} at {measured[0].trial.budget}"
        if len(measured) > 1:
            ends += f" to {measured[-1].error:.2f} at {measured[-1].trial.budget}"
        fitted = ", its own parameters fitted to other windows of the text" if measured[0].fitted else ""
        return (
            f"{kind} cannot stand in this model: {measured[0].why_not.split(';')[0]}. Compared on the non-causal "
            f"version of the layers instead (the same queries, keys and values, everybody seeing everybody{fitted}), "
            f"its error goes from {ends}."
        )
    good = next((one for one in inside if one.loss is not None and one.loss - exact <= SMALL), None)
    if good is not None:
        return f"{kind} costs about {SMALL} nats or less with {_budget(good)}: {_cost(good, exact)}."
    best = min(inside, key=lambda one: one.loss or 0.0)
    return f"{kind} costs more than {SMALL} nats; least, with {_budget(best)}: {_cost(best, exact)}."


def _budget(outcome: Outcome) -> str:
    settings = outcome.trial.settings
    return listed([f"{name} = {value}" for name, value in settings]) if settings else "its defaults"


def _cost(outcome: Outcome, exact: float) -> str:
    more, faster = (outcome.loss or 0.0) - exact, (outcome.pace or 0.0) / (outcome.exact_pace or 1.0)
    return f"{more:+.4f} ± {outcome.margin:.4f} nats at {faster:.2f} times exact attention's speed"


def rows(meter: Meter) -> list[tuple[str, ...]]:
    """One line for each budget, in the order of ``COLUMNS``."""
    found = []
    for one in meter.outcomes:
        name = (one.trial.kind, one.trial.budget)
        if one.refused:
            found.append((*name, "refused", *("",) * (len(COLUMNS) - 3)))
            continue
        worst = f"{one.worst.layer}.{one.worst.head} {one.worst.error:.3f}"
        measures = (f"{one.error:.3f}" + ("" if one.causal else "*"), worst, f"{one.variation:.3f}")
        inside = ("",) * 4
        if one.loss is not None and one.pace and one.exact_pace:
            more = f"{one.loss - meter.loss:+.4f} ± {one.margin:.4f}"
            inside = (f"{one.loss:.4f}", more, f"{one.pace:,.0f}", f"{one.pace / one.exact_pace:.2f}")
        found.append((*name, *measures, *inside))
    return found


def table(meter: Meter) -> str:
    """For a terminal."""
    lines = [COLUMNS, *rows(meter)]
    wide = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    texts = ["  ".join(_aligned(i, *pair) for i, pair in enumerate(zip(line, wide, strict=True))) for line in lines]
    marked = ["* on the non-causal version of the layers"] if any(not one.causal for one in meter.outcomes) else []
    return "\n".join([*(text.rstrip() for text in texts), *marked])


def _aligned(column: int, cell: str, width: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)


def numbers(meter: Meter) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "loss": meter.loss,
        "tokens": meter.tokens,
        "outcomes": [
            {
                "attention": one.trial.kind,
                "settings": dict(one.trial.settings),
                "refused": one.refused or None,
                "causal": one.causal,
                "not_in_model": one.why_not or None,
                "fitted": one.fitted,
                "error": one.error if one.heads else None,
                "variation": one.variation if one.heads else None,
                "loss": one.loss,
                "more": None if one.loss is None else one.loss - meter.loss,
                "more_margin": one.margin,
                "loss_by_block": one.by_block,
                "tokens_per_second": one.pace,
                "exact_tokens_per_second": one.exact_pace,
                "heads": [head._asdict() for head in one.heads],
            }
            for one in meter.outcomes
        ],
    }
