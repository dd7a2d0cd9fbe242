"""The loss counts every target that is not ignored exactly once, and a target is the token after its input."""

from collections import Counter
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention import Packed, Padded
from regard.data import Data, PairBatch, TextBatch
from regard.models.base import Encoder, Model
from regard.prove import ClaimResult, ModelUnderTest, claim, fails, holds, not_applicable
from regard.prove.batches import Batch, batch_size
from regard.tasks import Task

TOLERANCE = 1e-4
BATCHES = 40  # of the validation part that are tested
TAIL, MANY = 4, 0.25  # so many equal targets at the end of so large a share of rows look like padding
LARGE = 10**6  # targets: a larger validation part is not counted again


@claim("loss", "the loss counts each target once, and a target is the token after its input", order=100)
@torch.no_grad()
def loss(subject: ModelUnderTest) -> ClaimResult:
    data = subject.data
    if data is None:
        return not_applicable("no data was given")
    if isinstance(subject.model, Encoder):
        return not_applicable("the task of an encoder chooses its own targets")
    size = batch_size(data)
    train = [data.batch(step, seed=1, size=size) for step in range(8)]
    held_out = list(islice(data.validation_batches(size), BATCHES))
    for part, batches in (("training", train), ("validation", held_out)):
        for number, batch in enumerate(batches):
            if wrong := _misaligned(batch) or _out_of_range(subject, batch):
                return fails(f"{part} batch {number}: {wrong}")
        if wrong := _counted_padding(batches):
            return fails(f"{part} batches: {wrong}")
    if wrong := _validation_count(data, size):
        return fails(wrong)
    targets = sum(int((batch.targets >= 0).sum()) for batch in (*train, *held_out))
    evidence = f"{targets:,} targets follow their inputs"
    if subject.task is None or subject.model is None:
        return holds(evidence)
    for batch in (*train[:2], *held_out[:1]):
        if wrong := _miscounted(subject.task, subject.model, batch):
            return fails(wrong)
    return holds(f"{evidence}; sums and counts are those of the targets that count")


def _misaligned(batch: Batch) -> str:
    """The first counted target that is not the next input. Only targets whose successor counts too are compared."""
    inputs, targets = batch.inputs, batch.targets
    counted = (targets[:, :-1] >= 0) & (targets[:, 1:] >= 0)
    if isinstance(batch, TextBatch) and isinstance(batch.slots, Packed):
        counted &= batch.slots.segment[:, :-1] == batch.slots.segment[:, 1:]
    wrong = counted & (targets[:, :-1] != inputs[:, 1:])
    if not wrong.any():
        return ""
    row, position = wrong.nonzero()[0].tolist()
    copied = float((targets == inputs)[targets >= 0].double().mean())
    note = f" (copying the input is right for {copied:.0%} of targets)" if copied > 0.5 else ""
    return (
        f"row {row}, position {position}: the target is {int(targets[row, position])}, but the next input is "
        f"{int(inputs[row, position + 1])}{note}"
    )


def _out_of_range(subject: ModelUnderTest, batch: Batch) -> str:
    """A token outside the vocabulary, or a target that counts on padding."""
    highest, lowest = max(int(batch.targets.max()), int(batch.inputs.max())), int(batch.inputs.min())
    if highest >= subject.vocabulary or lowest < 0:
        return f"token {highest if lowest >= 0 else lowest} is none of the {subject.vocabulary}"
    slots = batch.slots if isinstance(batch, TextBatch) else None
    if isinstance(slots, Padded | Packed):
        segment = slots.at(torch.arange(len(batch.inputs))[:, None], torch.arange(slots.length)[None]).segment
        wrong = (segment < 0) & (batch.targets >= 0)
        if wrong.any():
            row, position = wrong.nonzero()[0].tolist()
            return f"row {row}, position {position} is padding, and its target counts"
    return ""


def _counted_padding(batches: list[Batch]) -> str:
    """Whether many rows end in repetitions of one token that all count: probably padding."""
    ends: Counter[int] = Counter()
    rows = 0
    for batch in batches:
        tail = batch.targets[:, -TAIL:]
        rows += len(tail)
        if tail.shape[1] == TAIL:
            ends.update(tail[(tail == tail[:, :1]).all(1) & (tail[:, 0] >= 0), 0].tolist())
    token, count = ends.most_common(1)[0] if ends else (0, 0)
    if rows < 8 or count <= MANY * rows:
        return ""
    return f"{count} of {rows} rows end in {TAIL} times token {token}, and all of it counts: is that padding?"


def _validation_count(data: Data, size: int) -> str:
    """Whether the validation part has the same targets for every batch size and number of processes."""
    if (data.validation_count or 0) > LARGE:
        return ""

    def counts(size: int, world: int) -> Tensor:
        total = torch.zeros(0, dtype=torch.long)
        for rank in range(world):
            for batch in data.validation_batches(size, rank=rank, world=world):
                here = torch.bincount(batch.targets[batch.targets >= 0])
                width = max(len(total), len(here))
                total = F.pad(total, (0, width - len(total))) + F.pad(here, (0, width - len(here)))
        return total

    once, known = counts(size, 1), data.validation_count
    if known is not None and int(once.sum()) != known:
        return f"the validation part has {known:,} targets, and its batches count {int(once.sum()):,}"
    for other, world in ((size + 3, 1), (size, 2)):
        again = counts(other, world)
        if not torch.equal(once, again):
            how = f"{world} processes" if world > 1 else f"batches of {other} instead of {size}"
            return f"the validation part counts {int(once.sum()):,} targets, and with {how} {int(again.sum()):,}"
    return ""


def _miscounted(task: Task, model: Model, batch: Batch) -> str:
    """The task's sums and counts, compared with the cross entropy of the model's logits."""
    odd = torch.arange(batch.targets.shape[1]) % 2 == 1
    half = batch._replace(targets=torch.where(odd, -1, batch.targets))
    for note, given in (("", batch), (" (every other target ignored)", half)):
        terms, counts = task.terms(model, given), task.counts(given)
        here = int((given.targets >= 0).sum())
        for name, term in terms.items():
            if term.additive and not int(term.count) == int(counts[name]) == here:
                return f"{name}{note}: {here} count, the term has {int(term.count)} and counts() {int(counts[name])}"
        if set(terms) != {"next_token"}:
            continue
        more = (given.source, given.source_lengths) if isinstance(given, PairBatch) else (given.slots,)
        logits, targets = model(given.inputs, *more).flatten(0, 1).double(), given.targets.flatten()
        expected = float(F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum"))
        total = float(terms["next_token"].total)
        if not abs(total - expected) <= TOLERANCE * max(1.0, abs(expected)):
            return f"next_token{note}: the sum is {total:.6g}, the cross entropy of the logits is {expected:.6g}"
    return ""
