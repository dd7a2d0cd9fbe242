"""The loss counts every target that is not ignored exactly once, and a target is the token after its input."""

from collections import Counter
from itertools import islice

import torch
from torch.nn import functional as F

from regard.attention import Packed, Padded
from regard.data import Data, PairBatch, TextBatch
from regard.models.base import Encoder, LanguageModel, Model
from regard.prove import ClaimFails, ClaimResult, ModelUnderTest, claim, holds, not_applicable
from regard.prove.batches import Batch, batch_size, out_of_range, random_batch
from regard.tasks import Task
from regard.train.device import move

TOLERANCE = 1e-4
BATCHES = 40  # of the validation part that are tested
TAIL, MANY = 4, 0.25  # so many equal targets at the end of so large a share of rows look like padding
WRAPPED = 8  # rows whose last target is their first input are no coincidence
LARGE = 10**6  # targets: a larger validation part is not counted again


@claim("loss", "the loss counts each target once, and a target is the token after its input", order=100)
@torch.no_grad()
def loss(subject: ModelUnderTest) -> ClaimResult:
    data = subject.data
    if data is None and subject.task is not None and isinstance(subject.model, LanguageModel):
        _check_terms(subject.task, subject.model, random_batch(subject))
        return holds("sums and counts for random tokens are those of the targets that count")
    if data is None:
        return not_applicable("no data was given")
    if isinstance(subject.model, Encoder) or (subject.model is not None and subject.model.config.reads != "text"):
        return not_applicable("the task of an encoder, or of what is no text, chooses its own targets")
    size = batch_size(data)
    train = [data.batch(step, seed=1, size=size) for step in range(8)]
    held_out = list(islice(data.validation_batches(size), BATCHES))
    for part, batches in (("training", train), ("validation", held_out)):
        for number, batch in enumerate(batches):
            _check_alignment(batch, f"{part} batch {number}")
            _check_tokens(batch, subject.vocabulary, f"{part} batch {number}")
        _check_tails(batches, part)
        _check_ends(batches, part)
    _check_validation_count(data, size)
    targets = sum(int((batch.targets >= 0).sum()) for batch in (*train, *held_out))
    evidence = f"{targets:,} targets follow their inputs"
    if subject.task is None or subject.model is None:
        return holds(evidence)
    for batch in (*train[:2], *held_out[:1]):
        _check_terms(subject.task, subject.model, move(batch, subject.device))
    return holds(f"{evidence}; sums and counts are those of the targets that count")


def _check_alignment(batch: Batch, where: str) -> None:
    """Each counted target is the next input. Only targets whose successor counts too are compared."""
    inputs, targets = batch.inputs, batch.targets
    counted = (targets[:, :-1] >= 0) & (targets[:, 1:] >= 0)
    if isinstance(batch, TextBatch) and isinstance(batch.slots, Packed):
        counted &= batch.slots.segment[:, :-1] == batch.slots.segment[:, 1:]
    wrong = counted & (targets[:, :-1] != inputs[:, 1:])
    if wrong.any():
        row, position = wrong.nonzero()[0].tolist()
        target, following = int(targets[row, position]), int(inputs[row, position + 1])
        copied = float((targets == inputs)[targets >= 0].double().mean())
        note = f" (copying the input is right for {copied:.0%} of targets)" if copied > 0.5 else ""
        found = f"the target is {target}, but the next input is {following}{note}"
        raise ClaimFails(f"{where}: row {row}, position {position}: {found}")


def _check_tokens(batch: Batch, vocabulary: int, where: str) -> None:
    """All tokens are in the vocabulary, and no target counts on padding."""
    for name, place, token in out_of_range(batch, vocabulary):
        raise ClaimFails(f"{where}: {name}{place} is {token}, none of the {vocabulary} token ids")
    slots = batch.slots if isinstance(batch, TextBatch) else None
    if isinstance(slots, Padded | Packed):
        segment = slots.at(torch.arange(len(batch.inputs))[:, None], torch.arange(slots.length)[None]).segment
        wrong = (segment < 0) & (batch.targets >= 0)
        if wrong.any():
            row, position = wrong.nonzero()[0].tolist()
            raise ClaimFails(f"{where}: row {row}, position {position} is padding, and its target counts")


def _check_tails(batches: list[Batch], part: str) -> None:
    """Not many rows end in repetitions of one token that all count: that would probably be padding."""
    ends: Counter[int] = Counter()
    rows = 0
    for batch in batches:
        tail = batch.targets[:, -TAIL:]
        rows += len(tail)
        if tail.shape[1] == TAIL:
            ends.update(tail[(tail == tail[:, :1]).all(1) & (tail[:, 0] >= 0), 0].tolist())
    token, count = ends.most_common(1)[0] if ends else (0, 0)
    if rows >= 8 and count > MANY * rows:
        tails = f"{count} of {rows} rows end in {TAIL} times token {token}"
        raise ClaimFails(f"{part} batches: {tails}, and all of it counts: is that padding?")


def _check_ends(batches: list[Batch], part: str) -> None:
    """The last target of a row is not its first input: `roll` does that, and no input follows to compare with."""
    ends = [(batch.inputs[:, 0], batch.targets[:, -1]) for batch in batches if isinstance(batch, TextBatch)]
    if not ends:
        return
    first, last = (torch.cat(tokens) for tokens in zip(*ends, strict=True))
    first, last = first[last >= 0], last[last >= 0]
    if len(last) >= WRAPPED and len(last.unique()) > 2 and torch.equal(first, last):
        raise ClaimFails(f"{part} batches: the last target of all {len(last)} rows is the row's first token")


def _check_validation_count(data: Data, size: int) -> None:
    """The validation part has the same targets for every batch size and number of processes."""
    if (data.validation_count or 0) > LARGE:
        return

    def counts(size: int, world: int) -> Counter[int]:
        targets: Counter[int] = Counter()
        for rank in range(world):
            for batch in data.validation_batches(size, rank=rank, world=world):
                targets.update(batch.targets[batch.targets >= 0].tolist())
        return targets

    once, known = counts(size, 1), data.validation_count
    if known is not None and once.total() != known:
        raise ClaimFails(f"the validation part has {known:,} targets, and its batches count {once.total():,}")
    for other, world in ((size + 3, 1), (size, 2)):
        again = counts(other, world)
        if once != again:
            how = f"{world} processes" if world > 1 else f"batches of {other} instead of {size}"
            raise ClaimFails(f"validation counts {once.total():,} targets, and with {how} {again.total():,}")


def _check_terms(task: Task, model: Model, batch: Batch) -> None:
    """The task's sums and counts are those of the targets and of the cross entropy of the model's logits."""
    odd = torch.arange(batch.targets.shape[1], device=batch.targets.device) % 2 == 1
    half = batch._replace(targets=torch.where(odd, -1, batch.targets))
    for note, given in (("", batch), (" (every other target ignored)", half)):
        terms, counts = task.terms(model, given), task.counts(given)
        here = int((given.targets >= 0).sum())
        for name, term in terms.items():
            if term.additive and not int(term.count) == int(counts[name]) == here:
                found = f"the term has {int(term.count)} and counts() {int(counts[name])}"
                raise ClaimFails(f"{name}{note}: {here} targets count, {found}")
        if set(terms) != {"next_token"}:
            continue
        slots = given.slots if isinstance(given, TextBatch) else None
        more = (given.source, given.source_lengths) if isinstance(given, PairBatch) else (slots,)
        logits, targets = model(given.inputs, *more).flatten(0, 1).double(), given.targets.flatten()
        expected = float(F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum"))
        total = float(terms["next_token"].total)
        if not abs(total - expected) <= TOLERANCE * max(1.0, abs(expected)):
            sums = f"the sum is {total:.6g}, the cross entropy of the logits is {expected:.6g}"
            raise ClaimFails(f"next_token{note}: {sums}")
