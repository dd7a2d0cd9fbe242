"""The loss counts exactly the tokens it should, each once, and a target is what follows its input."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention import Packed, Padded
from regard.prove.batches import halves, rows_of, size_for
from regard.prove.subject import Subject
from regard.prove.verdict import Verdict, fails, holds, unasked

SAYS = "the loss counts each target that counts once, and a target is what follows its input"
CLOSE = 1e-4
BATCHES = 40  # of each part that are looked at
TAIL, MANY = 4, 0.25  # so many equal targets at the end of so large a share of rows look like padding


@torch.no_grad()
def judge(subject: Subject) -> Verdict:
    data, task = subject.data, subject.task
    if data is None:
        return unasked("no data was given")
    size, told = size_for(data), []
    train = [data.batch(step, seed=1, size=size) for step in range(8)]
    held = list(islice(data.validation_batches(size), BATCHES))
    for part, batches in (("training", train), ("validation", held)):
        for number, batch in enumerate(batches):
            if wrong := _misaligned(batch) or _outside(subject, batch):
                return fails(f"{part} batch {number}: {wrong}")
        if wrong := _padding(batches):
            return fails(f"{part} batches: {wrong}")
    if wrong := _twice(data, size):
        return fails(wrong)
    told.append(f"{sum(int((batch.targets >= 0).sum()) for batch in (*train, *held)):,} targets follow their inputs")
    if task is not None and subject.model is not None:
        for batch in (*train[:2], *held[:1]):
            if wrong := _miscounted(subject, batch):
                return fails(wrong)
        told.append("sums and counts are those of the targets that count")
    return holds("; ".join(told))


def _misaligned(batch: Any) -> str:
    """A counted target is the next input, where that one counts too: behind it may be filling."""
    inputs, targets = batch.inputs, batch.targets
    counted = (targets[:, :-1] >= 0) & (targets[:, 1:] >= 0)
    if isinstance(slots := getattr(batch, "slots", None), Packed):
        counted &= slots.segment[:, :-1] == slots.segment[:, 1:]
    wrong = counted & (targets[:, :-1] != inputs[:, 1:])
    if not wrong.any():
        return ""
    row, place = wrong.nonzero()[0].tolist()
    copied = float((targets == inputs)[targets >= 0].double().mean())
    copy = f" (to copy the input is right for {copied:.0%} of targets)" if copied > 0.5 else ""
    return (
        f"row {row}, place {place}: the target is {int(targets[row, place])}, but {int(inputs[row, place + 1])} "
        f"follows the input{copy}"
    )


def _outside(subject: Subject, batch: Any) -> str:
    highest, lowest = int(batch.targets.max()), int(batch.inputs.min())
    if max(highest, int(batch.inputs.max())) >= subject.vocabulary or lowest < 0:
        return f"token {max(highest, int(batch.inputs.max()))} is none of the {subject.vocabulary}"
    if isinstance(slots := getattr(batch, "slots", None), Padded | Packed):
        segment = slots.at(torch.arange(len(batch.inputs))[:, None], torch.arange(slots.length)[None]).segment
        if ((segment < 0) & (batch.targets >= 0)).any():
            row, place = ((segment < 0) & (batch.targets >= 0)).nonzero()[0].tolist()
            return f"row {row}, place {place} is padding, and its target counts"
    return ""


def _padding(batches: list[Any]) -> str:
    """Whether many rows end in one and the same token, counted each time: padding that nobody left out."""
    ends: Counter[int] = Counter()
    rows = 0
    for batch in batches:
        tail = batch.targets[:, -TAIL:]
        rows += len(tail)
        same = (tail == tail[:, :1]).all(1) & (tail[:, 0] >= 0) if tail.shape[1] == TAIL else tail[:, 0] < -1
        ends.update(tail[same, 0].tolist())
    if not ends or rows < 8:
        return ""
    (token, count), *_ = ends.most_common(1)
    if count <= MANY * rows:
        return ""
    return f"{count} of {rows} rows end in {TAIL} times token {token}, and all of it counts: is that padding?"


def _twice(data: Any, size: int) -> str:
    """The held-out part has the same targets however it is cut into batches and shared among processes."""
    if (data.validation_count or 0) > 10**6:
        return ""

    def counted(size: int, world: int) -> Tensor:
        found = torch.zeros(0, dtype=torch.long)
        for rank in range(world):
            for batch in data.validation_batches(size, rank=rank, world=world):
                here = torch.bincount(batch.targets[batch.targets >= 0])
                wide = max(len(found), len(here))
                found = F.pad(found, (0, wide - len(found))) + F.pad(here, (0, wide - len(here)))
        return found

    once = counted(size, 1)
    known = data.validation_count
    if known is not None and int(once.sum()) != known:
        return f"the validation part has {known:,} targets, and its batches count {int(once.sum()):,}"
    for other, world in ((size + 3, 1), (size, 2)):
        again = counted(other, world)
        if not torch.equal(once, again):
            how = f"{world} processes" if world > 1 else f"batches of {other} instead of {size}"
            return f"the validation part counts {int(once.sum()):,} targets, and with {how} {int(again.sum()):,}"
    return ""


def _miscounted(subject: Subject, batch: Any) -> str:
    """What the task sums and counts, beside the sum by hand over the model's logits."""
    task, model = subject.task, subject.model
    for told, given in (("", batch), (" (every other target left out)", halves(batch))):
        terms, counts = task.terms(model, given), task.counts(given)
        for name, term in terms.items():
            if not term.additive:
                continue
            here = int((given.targets >= 0).sum())
            if int(term.count) != here or int(counts[name]) != here:
                return f"{name}{told}: {here} count, the task counts {int(term.count)}, foresees {int(counts[name])}"
        if set(terms) != {"next_token"}:
            continue
        logits = _logits(model, given)
        by_hand = F.cross_entropy(
            logits.flatten(0, 1).double(), given.targets.flatten(), ignore_index=-1, reduction="sum"
        )
        apart = abs(float(terms["next_token"].total) - float(by_hand))
        if not apart <= CLOSE * max(1.0, abs(float(by_hand))):
            found = float(terms["next_token"].total)
            return f"next_token{told}: the sum is {found:.6g}, by hand it is {float(by_hand):.6g}"
    return ""


def _logits(model: Any, batch: Any) -> Tensor:
    return model(*rows_of(batch))
