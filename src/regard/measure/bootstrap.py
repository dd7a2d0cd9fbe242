"""Is one system better than another, or was it the luck of the test sentences? Paired bootstrap (Koehn 2004)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.measure.bleu import check, library

ORDERS = 4  # n-grams of BLEU


class Comparison(NamedTuple):
    """BLEU of two systems on the same sentences."""

    first: float
    second: float
    low: float  # 95 of 100 resampled differences (second - first) lie between these
    high: float
    p: float  # how often chance alone makes so great a difference

    @property
    def difference(self) -> float:
        """By how much the second is better."""
        return self.second - self.first

    def __str__(self) -> str:
        return f"{self.difference:+.2f} BLEU (95% {self.low:+.2f} to {self.high:+.2f}, p = {self.p:.4f})"


def compare(
    first: Sequence[str], second: Sequence[str], references: Sequence[str], *, samples: int = 1000, seed: int = 1
) -> Comparison:
    """Draw as many sentences as there are, with replacement, again and again, the same ones for both systems.

    The p-value is that of sacrebleu: the share of samples whose difference lies farther from the samples' mean than
    the real difference lies from zero, with one added above and below.
    """
    check(first, references)
    check(second, references)
    if samples < 1:
        raise UserError(f"at least 1 sample must be drawn, not {samples}")
    ours, theirs = statistics(first, references), statistics(second, references)
    draw = np.random.Generator(np.random.Philox(seed))
    differences = np.empty(samples)
    for i in range(samples):
        chosen = draw.integers(len(references), size=len(references))
        differences[i] = bleu(theirs[chosen].sum(0)) - bleu(ours[chosen].sum(0))
    scores = bleu(ours.sum(0)), bleu(theirs.sum(0))
    farther = np.abs(differences - differences.mean()) > abs(scores[1] - scores[0])
    low, high = np.percentile(differences, [2.5, 97.5])
    return Comparison(*scores, float(low), float(high), (int(farther.sum()) + 1) / (samples + 1))


def statistics(outputs: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """What BLEU is made of, for each sentence: matches and n-grams of each order, both lengths; [N, 10]."""
    metric = library().BLEU(effective_order=True)  # a matter of a sentence's own score, which nobody asks for
    rows = [metric.sentence_score(output, [reference]) for output, reference in zip(outputs, references, strict=True)]
    return np.array([[*row.counts, *row.totals, row.sys_len, row.ref_len] for row in rows], dtype=np.int64)


def bleu(sums: NDArray[np.int64]) -> float:
    """BLEU of a set of sentences from the sums of their statistics."""
    counts, totals = sums[:ORDERS].tolist(), sums[ORDERS : 2 * ORDERS].tolist()
    made = library().BLEU.compute_bleu(counts, totals, int(sums[-2]), int(sums[-1]), smooth_method="exp")
    return made.score
