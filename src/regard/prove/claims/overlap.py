"""The validation and test parts are not in the training part, neither verbatim nor nearly.

Every run of tokens of the held-out parts is looked up in the training text. What language repeats anyway is measured on
the training text itself: how much of its end is in the rest of it.
"""

import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from regard.data import Data, PairBatch, TextData, Tokenizer
from regard.prove import ClaimResult, ModelUnderTest, claim, fails, holds, not_applicable
from regard.prove.batches import Batch, batch_size
from regard.prove.shared_text import Symbols, information, known_lengths, near_duplicates, share_of

STEPS = 200  # training batches, beside the whole training text where it can be read
TOKENS = {"quick": 20_000_000, "full": 10**10}  # of each part that are compared
NEARLY = {"quick": 1_000_000, "full": 10**8}  # tokens that are compared for near-duplicates
MARGIN = 10  # bits beyond those at which a run of the training text is expected by chance
#: Passages of so many times the shortest run: the part of pieces that may have one, beside what language repeats.
LEVELS = {1: 0.1, 2: 0.01, 4: 0.002, 8: 0.0}
COPIED = 0.5  # of pieces with a passage of four runs: too many, whatever the text repeats
NEAR_SLACK = 0.005


class Texts(NamedTuple):
    """The texts that are compared, as documents; rows that continue one another are one document."""

    trained: list[Symbols]  # the training text, or distinct training rows
    sampled: list[Symbols]  # training batches
    held_out: dict[str, list[Symbols]]

    def usual(self) -> tuple[list[Symbols], list[Symbols]]:
        """The end of the training text, and the rest of it."""
        if len(self.trained) > 8:
            last = max(1, len(self.trained) // 8)
            return self.trained[-last:], self.trained[:-last]
        last = max(1, sum(map(len, self.trained)) // 8)
        whole = np.concatenate([np.zeros(0, np.int64), *self.trained])
        return [whole[-last:]], [whole[:-last]]


@claim("overlap", "no validation or test text is in the training text, verbatim or nearly", order=120)
def overlap(subject: ModelUnderTest) -> ClaimResult:
    data = subject.data
    if data is None:
        return not_applicable("no data was given")
    if data.shape is not None:
        return not_applicable("the data are arrays, not text; how they are divided is up to the data")
    texts = _read(data, TOKENS[subject.effort])
    every = [*texts.trained, *texts.sampled]
    count, longest = sum(map(len, every)), max(map(len, every), default=0)
    run = math.ceil((math.log2(max(2, count)) + MARGIN) / information(every))
    if not any(len(document) >= run for text in texts.held_out.values() for document in text) or longest < run:
        return not_applicable(f"no held-out row has {run} tokens; chance explains shorter repetitions")
    tail, rest = texts.usual()
    usual, evidence = known_lengths(tail, rest, run), []
    for part, text in texts.held_out.items():
        lengths = known_lengths(text, every, run)
        found = _verbatim(lengths, usual, run, part) or _nearly(texts, text, part, data.tokenizer, subject)
        if found:
            return fails(f"{found}; {count:,} tokens of training text were read")
        share = share_of([marks >= run for marks in lengths], 4 * run)
        evidence.append(f"{share.part:.1%} of {share.pieces:,} {part} pieces")
    own = share_of([marks >= run for marks in usual], 4 * run).part
    passages = f"have a passage of {run} or more of {count:,} tokens of training text (its own end: {own:.1%})"
    return holds(f"{' and '.join(evidence)} {passages}; no near-duplicates beyond what it repeats itself")


def _verbatim(lengths: list[Symbols], usual: list[Symbols], run: int, part: str) -> str:
    """What is known verbatim, if it is more than the training text repeats itself."""
    for times, slack in LEVELS.items():
        share, own = (share_of([marks >= times * run for marks in some], 4 * run) for some in (lengths, usual))
        if share.exceeds(own, slack) or (times == 4 and share.part > COPIED):
            most = max(int(marks.max(initial=0)) for marks in lengths)
            passage = f"{times * run} or more consecutive tokens of the training text, up to {most}"
            return f"{share.described(f'{part} pieces')} have {passage}"
    return ""


def _nearly(texts: Texts, text: list[Symbols], part: str, tokenizer: Tokenizer | None, subject: ModelUnderTest) -> str:
    """What is nearly known, if it is more than the training text repeats itself."""
    limit = NEARLY[subject.effort]
    tail, rest = texts.usual()
    asked, known, tail, rest = (
        [_normal(document, tokenizer) for document in _first(some, limit)]
        for some in (text, texts.trained or texts.sampled, tail, rest)
    )
    share, window = near_duplicates(asked, known)
    if share.known and share.exceeds(near_duplicates(tail, rest)[0], NEAR_SLACK):
        symbols = "tokens" if tokenizer is None else "letters"
        what = f"{part} windows of {window} {symbols}"
        return f"{share.described(what)} are near-duplicates of training text"
    return ""


def _normal(document: Symbols, tokenizer: Tokenizer | None) -> Symbols:
    """Lower-case letters and digits of a document; without a tokenizer, its tokens."""
    if tokenizer is None:
        return document
    text = re.sub(r"[\W_]+", "", tokenizer.decode(document[document < tokenizer.size]).lower())
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)


def _read(data: Data, limit: int) -> Texts:
    size = batch_size(data)
    epoch = data.epoch(size)
    steps = STEPS if isinstance(data, TextData) or math.isinf(epoch) else math.ceil(epoch)
    rows = list(_first(_documents((data.batch(step, seed=1, size=size) for step in range(steps)), False), limit))
    trained = list({row.tobytes(): row for row in rows}.values())
    if isinstance(data, TextData):
        windows = data.sliding_batches("train", max(1, 2**20 // data.context), data.context)
        trained = list(_first(_documents(windows), limit))
    parts = {"validation": data.validation_batches(size), "test": data.test_batches(size)}
    held_out = {part: list(_first(_documents(batches), limit)) for part, batches in parts.items()}
    return Texts(trained, rows, {part: text for part, text in held_out.items() if text})


def _first(documents: Iterable[Symbols], limit: int) -> Iterator[Symbols]:
    """Documents of at most ``limit`` tokens together."""
    for document in documents:
        if limit <= 0:
            return
        yield document[:limit]
        limit -= len(document)


def _documents(batches: Iterable[Batch], join: bool = True) -> Iterator[Symbols]:
    """The tokens of each row that count; rows that continue the row before them are joined to it."""
    parts: list[Symbols] = []
    for tokens in chain.from_iterable(map(_rows, batches)):
        if parts and not (join and parts[-1][-1] == tokens[0]):
            yield np.concatenate(parts)
            parts = []
        if parts:
            parts[-1] = parts[-1][:-1]
        parts.append(tokens)
    if parts:
        yield np.concatenate(parts)


def _rows(batch: Batch) -> Iterator[Symbols]:
    """The inputs that count and the last target; of a pair, the source comes before the translation."""
    inputs, targets = batch.inputs.numpy(), batch.targets.numpy()
    for row, counted in enumerate(targets >= 0):
        places = np.flatnonzero(counted)
        if not len(places):
            continue
        first, last = places[0], places[-1] + 1
        tokens = np.append(inputs[row, first:last], targets[row, last - 1])
        if isinstance(batch, PairBatch):
            tokens = np.concatenate((batch.source[row, : int(batch.source_lengths[row])].numpy(), tokens))
        yield tokens
