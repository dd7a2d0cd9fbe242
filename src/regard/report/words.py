"""The report in sentences: each is chosen by a rule and filled in from the facts, and omitted without evidence."""

import math
import re
import shlex
import statistics
from collections.abc import Iterator
from typing import NamedTuple

from regard.config.parts import with_options
from regard.look import Head, describe
from regard.pages.numbers import count, duration, join_words, plural, short, unit
from regard.report.config_diff import command
from regard.report.facts import Facts
from regard.report.trend import FEW, around, best_validation, tail, tail_records, trend
from regard.train.evaluate import in_words
from regard.train.live import loss_in_words

_KINDS = {
    "previous token": "to the previous token",
    "own token": "to the token itself",
    "first token": "to the first token (attention sink)",
    "focused": "sharply to few tokens",
    "even": "evenly to all tokens",
}

#: Models that are written otherwise than their kind.
NAMES = {"gpt": "GPT", "vit": "ViT"}
#: With fewer windows than this, the margin of a mean is unreliable (Student's factor is 1.5 times as large).
FEW_WINDOWS = 5
#: Shares of the loss at a window's start: a noticeable gain from context, and one that a wide margin must not exclude.
NOTICEABLE, WORTH = 0.02, 0.1


class NextStep(NamedTuple):
    """What to try next: the reason and the command."""

    why: str
    command: str


def summary(facts: Facts) -> list[str]:
    """Paragraphs about the run, its loss, its attention and its cost."""
    groups = ((what, ending), (losses, validation, direction, gap), (context, attention), (speed,))
    texts = [" ".join(sentence for rule in rules for sentence in rule(facts)) for rules in groups]
    return [text for text in texts if text]


def what(facts: Facts) -> Iterator[str]:
    """Model, data, and how much of it."""
    model = facts.config.get("model", {})
    sizes = [f"{model[key]} {word}" for key, word in (("layers", "layers"), ("heads", "heads")) if key in model]
    sizes += [f"width {model['width']}"] if "width" in model else []
    kind = str(model.get("kind", "model"))
    name = f"A {NAMES.get(kind, kind)} model" + (f" with {join_words(sizes)}" if sizes else "")
    if facts.size:
        name += f" ({count(facts.size.parameters)} parameters)"
    if not facts.step:
        yield f"{name} is to be trained on {facts.data}; no step is recorded yet."
        return
    seen = f", {count(facts.tokens)} {facts.unit}s," if facts.tokens else ""
    yield f"{name} was trained on {facts.data} for {plural(facts.step, 'step')}{seen} in {duration(facts.seconds)}."


def ending(facts: Facts) -> Iterator[str]:
    """How it ended, if not as planned."""
    if facts.diverged:
        yield f"It diverged: {facts.diverged}."
    elif facts.broken is not None:
        yield f"It diverged: at step {facts.broken:,} the loss was not finite."
    elif not facts.finished and facts.step:
        yield f"Training stopped early, after step {facts.step:,} of {facts.steps:,}."


def losses(facts: Facts) -> Iterator[str]:
    """The training loss from first to last."""
    if not facts.loss:
        return
    first, last = facts.loss[0][1], tail(facts.loss)
    vocabulary = facts.config.get("model", {}).get("vocabulary")
    guess = math.log(vocabulary) if isinstance(vocabulary, int) and vocabulary > 1 else None
    known = "" if guess is None else f"; uniform guessing among {vocabulary:,} tokens has a loss of {guess:.2f}"
    if len(facts.loss) == 1:
        yield f"One loss is recorded: {first:.3f} {facts.loss_unit} at step {facts.loss[0][0]:,}{known}."
        return
    moved = "fell" if last < first else "rose"
    yield f"The training loss {moved} from {first:.2f} to {last:.3f} {facts.loss_unit}{over_tail(facts)}{known}."
    if guess is not None and last >= guess:
        yield "That is no better than uniform guessing: the model has learned nothing useful."


def over_tail(facts: Facts) -> str:
    """What the training loss of the report is the mean of: it differs from the last record, where the chart ends."""
    records = tail_records(facts.loss)
    return f" (mean of the last {records} records)" if records > 1 else ""


def validation(facts: Facts) -> Iterator[str]:
    """The best validation loss and when it was."""
    if not facts.validation:
        held_out = facts.config.get("data", {}).get("validation")
        if facts.loss and held_out and facts.path:
            command = f"regard evaluate {facts.path}{with_options()}"
            yield f"Training stopped before the first evaluation; `{command}` runs one now."
        elif facts.loss:
            yield "No text was held out, so the validation loss is unknown."
        return
    step, best = best_validation(facts.validation)
    last, errors = facts.validation[-1], facts.validation_errors
    lowest = loss_in_words(best, errors.get(step))
    if len(facts.validation) == 1:
        yield f"The only evaluation, at step {step:,}, gave a validation loss of {lowest}."
    elif step == last[0]:
        yield f"The validation loss was best at the last of {len(facts.validation)} evaluations: {lowest}."
    else:
        ended = loss_in_words(last[1], errors.get(last[0]))
        yield f"The best validation loss, {lowest}, was at step {step:,}; the last was {ended}."
    if errors:
        yield "Evaluations read a sample of the validation text: ± is half of the 95% interval."
    if facts.judged:
        longer = f"; `regard evaluate {facts.path} --part test{with_options()}` measures longer problems too"
        yield f"The last evaluation measured {in_words(facts.judged)}{longer if facts.generated else ''}."


def direction(facts: Facts) -> Iterator[str]:
    """Still falling, flat, overfitting or unstable."""
    story = trend(facts)
    if story == "short":
        yield "The run is too short to show a trend."
    elif story == "falls":
        decayed = bool(facts.rate) and facts.rate[-1][1] < 0.1 * max(rate for _, rate in facts.rate)
        why = ", helped by the decay of the learning rate" if decayed else ""
        yield f"The loss was still falling in the last quarter of the run{why}: more steps should help."
    elif story == "flat":
        yield "In the last quarter of the run the loss hardly changed: it has converged."
    elif story == "overfits":
        step, best = best_validation(facts.validation)
        now, then = tail(facts.loss), around(facts.loss, step)
        yield (
            f"The model overfits: since step {step:,} the training loss went from {then:.3f} to {now:.3f}, while the "
            f"validation loss rose by {facts.validation[-1][1] - best:.3f}."
        )
    elif story == "worse":
        yield "Towards the end the loss rose again: training became unstable without diverging."


def gap(facts: Facts) -> Iterator[str]:
    """Training against validation at the end."""
    if not facts.validation or len(facts.loss) < 3 or trend(facts) in ("overfits", "diverged", "short", "worse"):
        return
    training, held_out = tail(facts.loss), facts.validation[-1][1]
    if held_out > training * 1.1:
        yield f"The validation loss is {held_out - training:.2f} above the training loss: the model begins to overfit."
    elif abs(held_out - training) <= training * 0.1:
        yield f"Training and validation loss are close ({held_out - training:+.2f}): the model does not overfit."


def context(facts: Facts) -> Iterator[str]:
    """Whether context helps."""
    positions = facts.inspection.positions if facts.inspection else None
    if positions is None or len(positions.mean) < 8:
        return
    quarter = max(1, len(positions.mean) // 4)
    early = positions.mean[0]
    late = statistics.fmean(positions.mean[-quarter:])
    gain, unsure = early - late, math.hypot(positions.margin[0], statistics.fmean(positions.margin[-quarter:]))
    known = positions.windows >= FEW_WINDOWS
    ends = f"the loss is {early:.2f} at a window's start and {late:.2f} in its last quarter"
    if not known or (gain <= unsure and gain + unsure > WORTH * early):
        margin = f", ± {unsure:.2f}" if known else ""
        few = f"{plural(positions.windows, 'window')} of held-out text"
        yield f"Whether context helps cannot be decided from {few}: {ends}{margin}."
        return
    if gain <= max(unsure, NOTICEABLE * early):
        yield f"Context does not help yet: {ends}."
        return
    half = next(i for i, loss in enumerate(positions.mean, start=1) if loss <= (early + late) / 2)
    most = max(half, reached(positions.mean, late + 0.1 * gain))
    soon = "" if half == most else f"half of it by token {half} and "
    yield (
        f"Context helps: the loss falls from {early:.2f} at the first token of a window to {late:.2f} in its last "
        f"quarter, {soon}nine tenths of it by token {most} of {len(positions.mean)}."
    )


def reached(curve: list[float], level: float) -> int:
    """The first position, counted from 1, from which the mean of the next few losses is at or below a level."""
    few = max(1, len(curve) // 16)
    means = (statistics.fmean(curve[i : i + few]) for i in range(len(curve)))
    return next((i for i, mean in enumerate(means, start=1) if mean <= level), len(curve))


def attention(facts: Facts) -> Iterator[str]:
    """The kinds of heads."""
    heads = facts.inspection.heads if facts.inspection else []
    if not heads:
        return
    groups: dict[str, list[Head]] = {}
    for head in heads:
        groups.setdefault(describe(head), []).append(head)
    parts = [f"{_named(groups[kind], len(heads))} {words}" for kind, words in _KINDS.items() if kind in groups]
    rest = len(groups.get("mixed", []))
    if not parts:
        yield f"None of the {plural(len(heads), 'head')} has a clear pattern."
    else:
        others = f"; the other {'one has' if rest == 1 else f'{rest} have'} no clear pattern" if rest else ""
        yield f"Of {plural(len(heads), 'head')}, {'; '.join(parts)}{others}."


def speed(facts: Facts) -> Iterator[str]:
    """Speed and cost."""
    if not facts.pace or not facts.tokens:
        return
    device = facts.environment.get("device")
    pace = f"Training ran at {count(facts.pace)} {facts.unit}s per second" + (f" on {device}" if device else "")
    flops = facts.size.flops if facts.size else None
    yield f"{pace}; in total it took {unit(flops * facts.tokens, 'FLOP')}." if flops else f"{pace}."


def next_step(facts: Facts) -> NextStep:
    """One thing to try, as a command."""
    story = trend(facts)
    model = facts.config.get("model", {})
    changes = {change.key: change.value for change in facts.changes}
    if story == "diverged" or story == "worse":
        return NextStep("Try a lower learning rate:", command(facts.recipe, changes | _lower_rate(facts)))
    resume = f"regard resume {shlex.quote(facts.path)}"
    if not facts.finished:
        return NextStep("Resume from the newest checkpoint:", f"{resume}{with_options()}")
    if story == "overfits":
        step = best_validation(facts.validation)[0]
        dropout = min(0.5, round(model.get("dropout", 0.5) + 0.1, 2))
        if dropout > model.get("dropout", 0.5):
            why = f"Stop at {step:,} steps, or regularize more:"
            return NextStep(why, command(facts.recipe, changes | {"model.dropout": dropout}))
        return NextStep(
            "Stop where the validation loss was best:", command(facts.recipe, changes | {"train.steps": step})
        )
    if story == "flat" and "width" in model:
        wider = command(facts.recipe, changes | {"model.width": 2 * model["width"]})
        return NextStep("More steps would change little. Try a wider model:", wider)
    # A long run is short only for the noise of its losses.
    factor = 10 if story in ("short", "unknown") and len(facts.loss) < 4 * FEW else 2
    why = "Train for much longer:" if factor == 10 else "Train for longer:"
    return NextStep(why, f"{resume} --steps {factor * facts.steps}{with_options()}")


def _lower_rate(facts: Facts) -> dict[str, object]:
    """The learning rate that the doctor suggests, so that a report names one; otherwise a third of the run's."""
    advised = (
        re.search(r"--train\.optimizer\.lr ([\d.e-]*\d)", str(record.get("change"))) for record in facts.findings
    )
    lr = facts.config.get("train", {}).get("optimizer", {}).get("lr")
    rates = [match[1] for match in advised if match] or ([short(lr / 3)] if isinstance(lr, float) else [])
    return {"train.optimizer.lr": float(rates[0])} if rates else {"train.clip": 0.5}


def _named(heads: list[Head], of: int) -> str:
    if len(heads) == of:
        return "all attend"
    if len(heads) > 3:
        return f"{len(heads)} attend"
    names = join_words([head.label for head in heads])
    return f"head {names} attends" if len(heads) == 1 else f"heads {names} attend"
