"""Data that comes more than once, is held out and trained on, or does not come from the training text.

Rows of batches and pairs of sentences are compared as they are; of a text, runs of tokens by a rolling hash.
"""

import math
from collections import Counter
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data import (
    DataConfig,
    GraphBatch,
    PairBatch,
    PairData,
    SentencePairs,
    TextBatch,
    TextConfig,
    TextData,
    Tokenizer,
)
from regard.data.origins.cache import cache_folder
from regard.doctor import Check, Finding, Findings, RecentBatches, TrainingRun
from regard.doctor.text_scan import CHUNK, TextScan, collision, text_tokens
from regard.errors import UserError
from regard.prove.batches import Batch

#: The share of a batch's rows that came before in the same half of an epoch.
REPEATED = 0.3
#: The share of runs of 50 tokens (Lee et al. 2022, sec. 4) of the validation text that are in the training text, and of
#: those that are twice in the training text. They find some 3 % in well-known datasets.
RUN, KNOWN, TWICE = 50, 0.1, 0.3
#: The share of runs that come again from which on the whole text is one passage many times, on purpose.
PERIODIC = 0.97
#: The probability, for windows drawn at random from the text, of as many equal rows as are reported.
CHANCE = 1e-6
HELD_OUT = 64  # batches of the validation text
FEWEST = 8  # runs or pairs that must have been searched for
#: Chance that windows drawn evenly look as uneven as those that are reported (two-sided Kolmogorov-Smirnov bound); a
#: finding only if so many windows leave out so much of the text.
UNEVEN, WINDOWS, LEFT_OUT = 1e-9, 24, 0.5
#: Half the sum of differences between two distributions of tokens: passages of one text have at most twice what chance
#: gives for so many tokens, and this. With other numbers for the same tokens it is far more, and sorted by frequency
#: the distributions agree: they differ by less than this share of it.
APART, ALIKE, TOKENS = 0.15, 0.5, 2000
#: The same distance between pairs of the most frequent tokens, beyond twice that of two halves of the training text.
NEIGHBORS, FREQUENT = 0.2, 40
SAMPLE = 2**16  # characters of the training text that are encoded and decoded


class DataFault(Check):
    kind, description = "data_fault", "data comes twice, leaks, or is not the training text"
    follows = ("target_fault", "text_fault")

    def __init__(self, run: TrainingRun):
        super().__init__(run)
        self._scan: TextScan | None = None
        self._held_out: NDArray[np.int64] | None = None
        self._read = 0  # tokens of the training text
        self._compared = False  # the pairs
        self._lost: Counter[str] | None = None  # characters of the text that its tokens do not give back
        self._collision: float | None = None  # the probability that two random windows are equal

    def on_batches(self, batches: RecentBatches) -> Findings:
        yield from self._rows(batches.batches)
        data = self.run.data
        if isinstance(data, PairData) and not self._compared:
            self._compared = True
            yield from self.pairs(data.train, data.validation)
        if isinstance(data, TextData):
            if self._held_out is None:
                held_out = data.validation_batches(64) if data.parts.validation.size else ()
                self._held_out = text_tokens(*islice(held_out, HELD_OUT))
            rows = torch.cat([one.inputs for one in batches.batches.values() if isinstance(one, TextBatch)])
            yield from self._numbers(rows)
            yield from self._neighbors(rows)
            if self._lost is None:
                self._lost = lost_characters(self.run.experiment.data, data.tokenizer)
            if self._lost:
                yield self._lossy(self._lost)
            yield from self._text(data, rows.numpy(), batches.reading)

    def _rows(self, batches: dict[int, Batch]) -> Findings:
        """Rows of the newest batch that an earlier one had, though other text is left."""
        (newest, batch), *earlier = batches.items()
        rows, count = row_bytes(batch), len(batch.inputs)
        if len(rows) < (1 - REPEATED) * count and self._unlikely(count - len(rows), count):
            evidence = f"batch {newest} has {count} rows, of which {len(rows)} differ"
            cause = "the loader gives the same rows several times within a batch"
            change = "draw every row of a batch independently"
            yield self.finding("training batches, within each", evidence, cause, change)
            return
        data = self.run.data
        epoch = math.inf if data is None else data.epoch(self.run.experiment.data.batch)
        for number, other in earlier:
            # An epoch of pairs has every pair once; the next one may begin with those at its end.
            if newest - number > epoch / 2 or (isinstance(data, PairData) and newest // epoch != number // epoch):
                break
            same = len(rows & row_bytes(other))
            share = same / max(len(rows), 1)
            if share > REPEATED and self._unlikely(same, len(rows)):
                evidence = f"{share:.0%} of batch {newest} is in batch {number} too, {newest - number} before it"
                cause = "the loader cycles through a few batches, or its seed starts again"
                change = "draw batches from the whole text: use the batch's number in its seed"
                yield self.finding(f"training batches, every {newest - number}", evidence, cause, change)
                return

    def _unlikely(self, equal: int, rows: int) -> bool:
        """Whether so many of the rows would not be equal to one of as many others by chance."""
        if self._collision is None:
            self._collision = collision(self.run.data) if isinstance(self.run.data, TextData) else 0.0
        each = 1 - (1 - self._collision) ** rows
        tail = (math.comb(rows, k) * each**k * (1 - each) ** (rows - k) for k in range(equal, rows + 1))
        return sum(tail) < CHANCE

    def pairs(self, train: SentencePairs, validation: SentencePairs) -> Findings:
        """Pairs of sentences. A few short ones may come twice in sound data."""
        own, held_out = (Counter(zip(part.sources, part.targets, strict=True)) for part in (train, validation))
        known = sum(pair in own for pair in held_out) / len(held_out) if len(held_out) >= FEWEST else 0.0
        again = sum(n for n in own.values() if n > 1) / own.total() if own.total() >= FEWEST else 0.0
        yield from self._copies(known, again, "pairs", TWICE)

    def _copies(self, known: float, repeated: float, unit: str, limit: float) -> Findings:
        if known > limit:
            evidence = f"{known:.0%} of its {unit} are in the training text"
            cause = "the validation part is a copy of training text, so its loss says nothing about other text"
            yield self.finding("validation", evidence, cause, "remove the copies, or hold out other text")
        if repeated > TWICE:
            evidence = f"{repeated:.0%} of its {unit} come more than once"
            cause = "the same documents are in the text several times"
            yield self.finding("training text", evidence, cause, "remove the copies from --data.path")

    def _text(self, data: TextData, rows: NDArray[np.int64], reading: float) -> Findings:
        """Look up runs of the validation and the training text, and the rows of batches, in the training text."""
        assert self._held_out is not None
        if self._scan is None or (self._scan.complete and self._read + data.train_count <= reading):
            known = rows if rows.shape[1] == data.context > 1 else rows[:0]
            self._scan = TextScan(data, RUN, self._held_out, known)
        while not self._scan.complete and self._read < max(1, reading):
            self._read += self._scan.advance()
        scan = self._scan
        known, repeated = scan.share("validation", 1), scan.share("training", 2)
        if repeated <= PERIODIC:
            yield from self._copies(known, repeated, f"runs of {RUN} tokens", KNOWN)
        if not scan.complete:
            return
        missing = scan.missing_rows()
        if missing.any():
            held_out = scan.held_out_rows(self._held_out)[missing].mean()
            evidence = f"{missing.mean():.0%} of the rows of the newest batches are nowhere in the training text"
            cause = "rows are changed after they were read: shuffled, replaced or corrupted tokens, or another text"
            if held_out > 0.5:
                evidence += f", and {held_out:.0%} of those are in the validation part"
                cause = "the run trains on text that is held out, so its validation loss says nothing"
            change = "take rows as they are in the training part: windows of consecutive tokens"
            yield self.finding("training batches", evidence, cause, change)
        elif data.order == "random":
            yield from self._spread(np.sort(scan.row_places()))

    def _spread(self, starts: NDArray[np.float64]) -> Findings:
        """Places in the text, from 0 to 1, that are not drawn from all of it."""
        count = len(starts)
        if count < WINDOWS:
            return
        steps = np.arange(count + 1) / count
        distance = max(np.abs(steps[1:] - starts).max(), np.abs(steps[:-1] - starts).max())
        gap = np.diff(np.concatenate([[0.0], starts, [1.0]])).max()
        if distance > math.sqrt(math.log(2 / UNEVEN) / (2 * count)) and gap > LEFT_OUT:
            between = f"between {starts[0]:.1%} and {starts[-1]:.1%} of the training text"
            evidence = f"{count} windows of neighboring batches begin {between}; {gap:.0%} of it is left out"
            cause = "the loader draws its windows from a part of the text, or reads it in order and does not shuffle"
            yield self.finding("training batches", evidence, cause, "draw windows from the whole training part")

    def _numbers(self, rows: torch.Tensor) -> Findings:
        """Validation text whose tokens have other numbers than those of the training text."""
        assert self._held_out is not None
        parts = (rows.flatten().clamp(min=0), torch.from_numpy(self._held_out[:CHUNK]))
        one, other = (part.bincount(minlength=self.run.vocabulary).double() for part in parts)
        if len(one) != len(other) or min(map(len, parts)) < TOKENS:
            return
        one, other, sizes = one / one.sum(), other / other.sum(), sum(1 / len(part) for part in parts)
        apart, alike = distance(one, other), distance(one.sort()[0], other.sort()[0])
        if apart > 2 * chance(one, sizes) + APART and alike < ALIKE * apart:
            evidence = f"its tokens differ from the trained ones by {apart:.0%}, and sorted by frequency by {alike:.0%}"
            cause = "the two parts were tokenized with different tables: the same text has other numbers"
            yield self.finding("validation", evidence, cause, "encode both parts with the tokenizer of the run")

    def _neighbors(self, rows: torch.Tensor) -> Findings:
        """Two parts with the same tokens, whose neighbors differ far more than those of two halves of one part."""
        assert self._held_out is not None
        held_out = torch.from_numpy(self._held_out[:CHUNK])[None]
        if min(rows.numel(), held_out.numel()) < TOKENS or rows.shape[1] < 2:
            return
        parts = [frequent(part, rows) for part in (rows, held_out, rows[::2], rows[1::2])]
        pairs, singles = ([count(part) for part in parts] for count in (pair_shares, single_shares))
        apart, halves, single = distance(*pairs[:2]), distance(*pairs[2:]), distance(*singles[:2])
        expected = max(halves, chance(pairs[0], sum(1 / part.numel() for part in parts[:2])))
        if apart > 2 * expected + NEIGHBORS and single < ALIKE * apart:
            excess = [distance(pair, torch.outer(one, one).flatten()) for pair, one in zip(pairs, singles, strict=True)]
            where = "training text" if excess[0] < excess[1] else "validation"
            evidence = f"pairs of neighbors in training and validation text differ by {apart:.0%}, single tokens by "
            evidence += f"{single:.0%}, and two halves of the training text by {halves:.0%} in pairs"
            cause = f"the order of the tokens in the {where} is not that of the other part: shuffled or joined wrongly"
            yield self.finding(where, evidence, cause, "compare a line of both files, and prepare both in the same way")

    def _lossy(self, lost: Counter[str]) -> Finding:
        named = ", ".join(repr(character) for character, _ in lost.most_common(5))
        evidence = f"decode(encode(text)) is not the text: {lost.total():,} of its first {SAMPLE:,} characters are lost"
        cause = (
            "characters that it does not know become another token, so different characters look the same to the model"
        )
        change = "learn its vocabulary from the whole text, or fall back to bytes"
        return self.finding("the tokenizer", f"{evidence}, such as {named}", cause, change)


def lost_characters(config: DataConfig, tokenizer: Tokenizer) -> Counter[str]:
    """The characters at the beginning of the training text that decoding its tokens does not give back."""
    if not isinstance(config, TextConfig) or config.tokenizer.raw or not tokenizer.lossless:
        return Counter()
    try:
        text = next(iter(config.texts(cache_folder())["train"].pieces()), "")[:SAMPLE]
        decoded = tokenizer.decode(tokenizer.encode(text))
    except UserError:  # the text is not there any more
        return Counter()
    if len(text) != len(decoded):
        return Counter(text) - Counter(decoded) or Counter(text if text != decoded else "")
    return Counter(character for character, other in zip(text, decoded, strict=True) if character != other)


def frequent(tokens: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """Tokens by their rank among the most frequent ones of a text; all others as one."""
    ranks = of.clamp(min=0).flatten().bincount(minlength=int(max(of.max(), tokens.max())) + 1).argsort(descending=True)
    numbers = torch.full((len(ranks),), FREQUENT)
    numbers[ranks[:FREQUENT]] = torch.arange(min(FREQUENT, len(ranks)))
    return numbers[tokens.clamp(min=0)]


def single_shares(tokens: torch.Tensor) -> torch.Tensor:
    counts = tokens.flatten().bincount(minlength=FREQUENT + 1).double()
    return counts / counts.sum()


def pair_shares(rows: torch.Tensor) -> torch.Tensor:
    pairs = rows[:, :-1] * (FREQUENT + 1) + rows[:, 1:]
    counts = pairs.flatten().bincount(minlength=(FREQUENT + 1) ** 2).double()
    return counts / counts.sum()


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Half the sum of differences between two distributions."""
    return float((one - other).abs().sum()) / 2


def chance(shares: torch.Tensor, sizes: float) -> float:
    """That distance of two samples of one distribution; ``sizes`` is the sum of one over their sizes."""
    return float((shares * sizes * 2 / math.pi).sqrt().sum()) / 2  # the mean of |x - y| of two normal deviates


def row_bytes(batch: Batch) -> set[bytes]:
    """The numbers of each row; of pairs without padding, which differs from batch to batch."""
    if isinstance(batch, GraphBatch):  # graphs may be equal where the questions about them are not
        parts = [part.numpy() for part in batch if isinstance(part, torch.Tensor)]
        return {b"|".join(part[row].tobytes() for part in parts) for row in range(len(batch.inputs))}
    if not isinstance(batch, PairBatch):
        return {row.tobytes() for row in batch.inputs.numpy()}
    padding = torch.arange(batch.source.shape[1]) >= batch.source_lengths[:, None]
    sides = [batch.source.masked_fill(padding, -1), batch.inputs.masked_fill(batch.targets < 0, -1)]
    return {b"|".join(row[row >= 0].numpy().tobytes() for row in rows) for rows in zip(*sides, strict=True)}
