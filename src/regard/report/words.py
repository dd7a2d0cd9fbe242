"""The report in words. Every sentence is chosen by a rule and filled from figures; one without grounds is left out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import NamedTuple

from regard.look import Head, describe
from regard.report.differ import command
from regard.report.facts import Facts
from regard.report.numbers import count, duration, listed, plural, unit
from regard.report.trend import around, best_validation, tail, trend

_KINDS = {
    "previous token": "to the token just before",
    "own token": "at the token itself",
    "first token": "at the first token, a place to rest",
    "focused": "sharply at few places",
    "even": "everywhere alike",
}


#: From fewer windows than this the margin of a mean is itself unknown (Student's factor is half as large again).
FEW_WINDOWS = 5
#: Of the loss at a window's start: a gain from context that is noticeable, and one that must not be denied unseen.
NOTICEABLE, WORTH = 0.02, 0.1


class Step(NamedTuple):
    """What to try next: why, and the command."""

    why: str
    command: str


def paragraphs(facts: Facts) -> list[str]:
    """What happened, in order: the run, its loss, its inside, its cost."""
    groups = ((what, ending), (losses, validation, direction, gap), (context, attention), (speed,))
    told = [" ".join(sentence for rule in rules for sentence in rule(facts)) for rules in groups]
    return [text for text in told if text]


def what(facts: Facts) -> Iterator[str]:
    """Model, data, and how much of it."""
    model = facts.config.get("model", {})
    sizes = [f"{model[key]} {word}" for key, word in (("layers", "layers"), ("heads", "heads")) if key in model]
    sizes += [f"width {model['width']}"] if "width" in model else []
    kind = str(model.get("kind", "model"))
    name = f"A {kind.upper() if len(kind) < 4 else kind} model" + (f" with {listed(sizes)}" if sizes else "")
    if facts.size:
        name += f" ({count(facts.size.parameters)} parameters)"
    if not facts.step:
        yield f"{name} was to be trained on {facts.data}; no step of it is on record."
        return
    seen = f", {count(facts.tokens)} tokens," if facts.tokens else ""
    yield f"{name} was trained on {facts.data} for {plural(facts.step, 'step')}{seen} in {duration(facts.seconds)}."


def ending(facts: Facts) -> Iterator[str]:
    """How it ended, if not as planned."""
    if facts.diverged:
        yield f"It diverged: {facts.diverged}."
    elif facts.broken is not None:
        yield f"It diverged: at step {facts.broken:,} the loss was no longer a number."
    elif not facts.finished and facts.step:
        yield f"It stopped before its end, after step {facts.step:,} of {facts.steps:,}."


def losses(facts: Facts) -> Iterator[str]:
    """The training loss from first to last."""
    if not facts.loss:
        return
    first, last = facts.loss[0][1], tail(facts.loss)
    vocabulary = facts.config.get("model", {}).get("vocabulary")
    guess = math.log(vocabulary) if isinstance(vocabulary, int) and vocabulary > 1 else None
    known = "" if guess is None else f"; a blind guess among {vocabulary:,} tokens costs {guess:.2f}"
    if len(facts.loss) == 1:
        yield f"One loss is on record: {first:.3f} nats per token at step {facts.loss[0][0]:,}{known}."
        return
    if last < first:
        yield f"The training loss fell from {first:.2f} to {last:.3f} nats per token{known}."
    else:
        yield f"The training loss rose from {first:.2f} to {last:.3f} nats per token{known}."
    if guess is not None and last >= guess:
        yield "That is no better than guessing: the model has learned nothing that helps."


def validation(facts: Facts) -> Iterator[str]:
    """The best validation loss and when it was."""
    if not facts.validation:
        held_out = facts.config.get("data", {}).get("validation")
        if facts.loss and held_out and facts.path:
            yield f"It stopped before its first evaluation; `regard evaluate {facts.path}` makes one now."
        elif facts.loss:
            yield "No text was held out, so how it does on text it has not seen is not known."
        return
    step, best = best_validation(facts.validation)
    last = facts.validation[-1]
    if len(facts.validation) == 1:
        yield f"The one evaluation, at step {step:,}, gave a validation loss of {best:.4f}."
    elif step == last[0]:
        yield f"The validation loss was best at the last of {len(facts.validation)} evaluations: {best:.4f}."
    else:
        yield f"The best validation loss, {best:.4f}, was that of step {step:,}; the last was {last[1]:.4f}."


def direction(facts: Facts) -> Iterator[str]:
    """Still falling, flat, overfitting or coming apart."""
    story = trend(facts)
    if story == "short":
        yield "The run is too short to tell where it was going."
    elif story == "falls":
        decayed = bool(facts.rate) and facts.rate[-1][1] < 0.1 * max(rate for _, rate in facts.rate)
        why = ", helped by the learning rate's decay" if decayed else ""
        yield f"The loss was still falling in the last quarter of the run{why}: more steps should help."
    elif story == "flat":
        yield "In the last quarter of the run the loss hardly moved: it has flattened."
    elif story == "overfits":
        step, best = best_validation(facts.validation)
        now, then = tail(facts.loss), around(facts.loss, step)
        yield (
            f"It overfits: since step {step:,} the training loss went from {then:.3f} to {now:.3f}, while the "
            f"validation loss rose by {facts.validation[-1][1] - best:.3f}."
        )
    elif story == "worse":
        yield "Towards the end the loss went up again: training came apart without breaking off."


def gap(facts: Facts) -> Iterator[str]:
    """Training against validation at the end."""
    if not facts.validation or len(facts.loss) < 3 or trend(facts) in ("overfits", "diverged", "short", "worse"):
        return
    training, held_out = tail(facts.loss), facts.validation[-1][1]
    if held_out > training * 1.1:
        yield f"On held-out text it is {held_out - training:.2f} worse than on its own: it has begun to learn by heart."
    elif abs(held_out - training) <= training * 0.1:
        yield f"Training and validation loss are close ({held_out - training:+.2f}): it does not learn by heart."


def context(facts: Facts) -> Iterator[str]:
    """Whether what came before helps."""
    positions = facts.inside.positions if facts.inside else None
    if positions is None or len(positions.mean) < 8:
        return
    quarter = max(1, len(positions.mean) // 4)
    early = positions.mean[0]
    late = statistics.fmean(positions.mean[-quarter:])
    gain, unsure = early - late, math.hypot(positions.margin[0], statistics.fmean(positions.margin[-quarter:]))
    known = positions.windows >= FEW_WINDOWS
    ends = f"the loss is {early:.2f} at a window's start and {late:.2f} in its last quarter"
    if not known or (gain <= unsure and gain + unsure > WORTH * early):
        margin = f", give or take {unsure:.2f}" if known else ""
        few = f"{plural(positions.windows, 'window')} of held-out text"
        yield f"Whether context helps cannot be told from {few}: {ends}{margin}."
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
    """The first place, counted from 1, from which the mean of the next few is at or below a level."""
    few = max(1, len(curve) // 16)
    means = (statistics.fmean(curve[i : i + few]) for i in range(len(curve)))
    return next((i for i, mean in enumerate(means, start=1) if mean <= level), len(curve))


def attention(facts: Facts) -> Iterator[str]:
    """What kinds of heads there are."""
    heads = facts.inside.heads if facts.inside else []
    if not heads:
        return
    groups: dict[str, list[Head]] = {}
    for head in heads:
        groups.setdefault(describe(head), []).append(head)
    told = [f"{_named(groups[kind], len(heads))} {words}" for kind, words in _KINDS.items() if kind in groups]
    rest = len(groups.get("mixed", []))
    if not told:
        yield f"None of the {plural(len(heads), 'head')} has one plain habit: all of them mix."
    else:
        others = "" if not rest else "; the other mixes" if rest == 1 else f"; the other {rest} mix"
        yield f"Of {plural(len(heads), 'head')}, {'; '.join(told)}{others}."


def speed(facts: Facts) -> Iterator[str]:
    """Pace and cost."""
    if not facts.pace or not facts.tokens:
        return
    device = facts.environment.get("device")
    pace = f"It ran at {count(facts.pace)} tokens a second" + (f" on {device}" if device else "")
    flops = facts.size.flops if facts.size else None
    yield f"{pace}; all of it cost {unit(flops * facts.tokens, 'FLOP')}." if flops else f"{pace}."


def next_step(facts: Facts) -> Step:
    """One thing to try, as a command that can be copied."""
    story = trend(facts)
    train, model = facts.config.get("train", {}), facts.config.get("model", {})
    changes = {change.key: change.value for change in facts.changes}
    if story == "diverged" or story == "worse":
        lr = train.get("optimizer", {}).get("lr")
        key = {"train.optimizer.lr": float(f"{lr / 3:.2g}")} if isinstance(lr, float) else {"train.clip": 0.5}
        return Step("Try a lower learning rate:", command(facts.recipe, changes | key))
    if not facts.finished:
        return Step("Go on from the newest checkpoint:", f"regard resume {facts.path}")
    if story == "overfits" and "dropout" in model:
        step = best_validation(facts.validation)[0]
        dropout = min(0.5, round(model["dropout"] + 0.1, 2))
        return Step(
            f"Stop at {step:,} steps, or make learning by heart harder:",
            command(facts.recipe, changes | {"model.dropout": dropout}),
        )
    if story == "flat" and "width" in model:
        return Step(
            "More steps would change little. Try a wider model:",
            command(facts.recipe, changes | {"model.width": 2 * model["width"]}),
        )
    factor = 10 if story in ("short", "unknown") else 2
    why = "Give it time:" if factor == 10 else "Train for longer:"
    return Step(why, command(facts.recipe, changes | {"train.steps": factor * facts.steps}))


def _named(heads: list[Head], of: int) -> str:
    if len(heads) == of:
        return "all look"
    if len(heads) > 3:
        return f"{len(heads)} look"
    names = listed([f"{head.layer}.{head.head}" for head in heads])
    return f"head {names} looks" if len(heads) == 1 else f"heads {names} look"
