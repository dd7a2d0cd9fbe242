"""A comparison in tables and sentences, for the terminal, the page and the docs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from regard.compare.budget import Length
from regard.compare.result import ArchitectureComparison, ComparedContender
from regard.measure.interval import Mean, difference
from regard.pages.numbers import duration, join_words, unit

TIME_LIMIT = 0.05  # relative differences of training times that count as equal
COLUMNS = ("contender", "loss", "parameters", "steps", "tokens", "FLOPs", "time", "s/step", "memory", "tokens/s", "lr")

LIMITS = (
    "Intervals are 95 % by Student's t over seeds, which change weights and batches; they do not cover other data, "
    "sizes or lengths of training, where the order may be another one.",
    "Time is steps times the median seconds of a step, measured in turn for all contenders before the trainings; "
    "beside it is the median of the trainings themselves. Evaluations are not part of it.",
    "FLOPs are those of matrix products, convolutions and attention; element by element operations, scans and Fourier "
    "transforms are not counted, so state spaces and recurrent cells take more than their number says.",
    "Memory is that of a traced step: weights, gradients, optimizer state and activations.",
    "Generated tokens per second: one text with a cache, behind half a context, with the fast paths of generation.",
    "Learning rates were searched in shorter trainings with a seed of their own, on the same validation text.",
)


def title(length: Length) -> str:
    """The heading of one length.

    >>> title(Length("seconds", 60.0))
    'At equal time (60 seconds)'
    """
    names = {"seconds": "time", "flops": "FLOPs", "tokens": "tokens", "steps": "steps", "epochs": "epochs"}
    return f"At equal {names[length.measure]} ({length})"


def table(comparison: ArchitectureComparison, length: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of one length, the best first."""
    shares = sorted({key for one in comparison.trainings if one.length == length for key in one.test})
    rows = [row(comparison, one, mean, length, shares) for one, mean in comparison.ranked(length)]
    return (*COLUMNS, *(key.replace("_", " ") for key in shares)), rows


def row(
    comparison: ArchitectureComparison, one: ComparedContender, mean: Mean, length: int, shares: Sequence[str]
) -> tuple[str, ...]:
    """A contender at one length."""
    trainings = comparison.of(one.name, length)
    steps, costs = trainings[0].steps, one.costs
    while_training = [training.step_seconds for training in trainings if training.step_seconds is not None]
    seconds = f"{costs.step.seconds:.3g}"
    if while_training:
        seconds += f" ({sum(while_training) / len(while_training):.3g})"
    return (
        one.name,
        loss_text(mean, [training.loss for training in trainings]),
        f"{costs.parameters:,}",
        f"{steps:,}",
        unit(steps * costs.step.tokens, ""),
        unit(steps * costs.step.flops, ""),
        duration(steps * costs.step.seconds),
        seconds,
        unit(costs.memory, "B"),
        "" if costs.decode is None else f"{costs.decode:,.0f}",
        f"{one.rate:g}{'*' if one.at_edge else ''}",
        *(share_text([training.test[key] for training in trainings if key in training.test]) for key in shares),
    )


def loss_text(mean: Mean, losses: Sequence[float]) -> str:
    """A mean loss with its interval; how many trainings diverged, if some did."""
    diverged = sum(not math.isfinite(loss) for loss in losses)
    if diverged:
        return f"{diverged} of {len(losses)} diverged"
    return f"{mean.value:.4f}" + (f" ± {mean.error:.4f}" if math.isfinite(mean.error) else "")


def share_text(values: Sequence[float]) -> str:
    """A mean share with its interval."""
    if not values:
        return ""
    mean = Mean.of(values)
    return f"{mean.value:.1%}" + (f" ± {mean.error:.1%}" if math.isfinite(mean.error) else "")


def sentences(comparison: ArchitectureComparison) -> Iterator[str]:
    """What the numbers say, and which differences the seeds do not settle."""
    for place, length in enumerate(comparison.lengths):
        ranked = [one for one in comparison.ranked(place) if math.isfinite(one[1].value)]
        if not ranked:
            yield f"{title(length)}, every training diverged."
            continue
        (first, lowest), *others = ranked
        if not math.isfinite(lowest.error):
            yield f"{title(length)}, {first.name} has the lowest loss, {lowest.value:.4f}; one seed gives no interval."
            continue
        best = comparison.losses(first.name, place)
        open_ = [
            one.name
            for one, _ in others
            if (gap := difference(comparison.losses(one.name, place), best)).value - gap.error <= 0
        ]
        tied = f" It is not told apart from {join_words(open_)} by these seeds." if open_ else ""
        yield f"{title(length)}, {first.name} has the lowest loss, {loss_text(lowest, best)} nats per target.{tied}"
    if edges := [one.name for one in comparison.contenders if one.at_edge]:
        yield f"The rate of {join_words(edges)} is the lowest or highest tried; more --rates may find a better one."
    yield from uneven_times(comparison)


def uneven_times(comparison: ArchitectureComparison) -> Iterator[str]:
    """Whether trainings of equal time took different times, as the machine was busier during some of them."""
    for place, length in enumerate(comparison.lengths):
        if length.measure != "seconds":
            continue
        taken = {
            one.name: sum(found) / len(found)
            for one in comparison.contenders
            if (found := [t.steps * t.step_seconds for t in comparison.of(one.name, place) if t.step_seconds])
        }
        if not taken:
            continue
        middle = sum(taken.values()) / len(taken)
        off = [f"{name} {seconds / middle - 1:+.0%}" for name, seconds in taken.items()]
        even = all(abs(seconds / middle - 1) <= TIME_LIMIT for seconds in taken.values())
        if not even:
            yield (
                f"The trainings of {length} took {duration(middle)} on average by their own clocks; against that mean: "
                f"{join_words(off)}. The machine was not equally busy during all of them."
            )


def columns_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in columns of plain text; the first one is aligned to the left."""
    widths = [max(len(line[place]) for line in (columns, *rows)) for place in range(len(columns))]
    lines = []
    for line in (columns, *rows):
        cells = [
            f"{line[0]:{widths[0]}}",
            *(f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def text(comparison: ArchitectureComparison) -> str:
    """The whole result for a terminal."""
    parts = []
    for place, length in enumerate(comparison.lengths):
        parts += [title(length), columns_text(*table(comparison, place)), ""]
    return "\n".join([*parts, *sentences(comparison)])
