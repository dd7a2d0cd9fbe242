"""Paired bootstrap (Koehn 2004): is the difference between two translation systems significant?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.measure.bleu import check_parallel, sacrebleu_metrics

ORDERS = 4  # BLEU uses n-grams of up to this length


class Comparison(NamedTuple):
    """BLEU of two systems on the same sentences."""

    first: float
    second: float
    low: float  # 95% confidence interval of the difference (second - first)
    high: float
    p: float  # p-value of the difference

    @property
    def difference(self) -> float:
        """BLEU of the second system minus that of the first."""
        return self.second - self.first

    def __str__(self) -> str:
        return f"{self.difference:+.2f} BLEU (95% {self.low:+.2f} to {self.high:+.2f}, p = {self.p:.4f})"


def compare(
    first: Sequence[str], second: Sequence[str], references: Sequence[str], *, samples: int = 1000, seed: int = 1
) -> Comparison:
    """Compare BLEU on ``samples`` resamples of the sentences with replacement, the same ones for both systems.

    The p-value is that of sacrebleu: the fraction of samples whose difference is farther from the samples' mean than
    the real difference is from zero, with one added to numerator and denominator.
    """
    check_parallel(first, references)
    check_parallel(second, references)
    if samples < 1:
        raise UserError(f"the number of samples must be at least 1, not {samples}")
    ours, theirs = statistics(first, references), statistics(second, references)
    random = np.random.Generator(np.random.Philox(seed))
    differences = np.empty(samples)
    for i in range(samples):
        chosen = random.integers(len(references), size=len(references))
        differences[i] = bleu(theirs[chosen].sum(0)) - bleu(ours[chosen].sum(0))
    scores = bleu(ours.sum(0)), bleu(theirs.sum(0))
    farther = np.abs(differences - differences.mean()) > abs(scores[1] - scores[0])
    low, high = np.percentile(differences, [2.5, 97.5])
    return Comparison(*scores, float(low), float(high), (int(farther.sum()) + 1) / (samples + 1))


def statistics(outputs: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """The sufficient statistics of BLEU per sentence: matches and n-grams of each order, both lengths; [N, 10]."""
    metric = sacrebleu_metrics().BLEU(effective_order=True)  # affects the score of a sentence only, which is unused
    rows = [metric.sentence_score(output, [reference]) for output, reference in zip(outputs, references, strict=True)]
    return np.array([[*row.counts, *row.totals, row.sys_len, row.ref_len] for row in rows], dtype=np.int64)


def bleu(sums: NDArray[np.int64]) -> float:
    """Corpus BLEU from the sums of the sentences' statistics."""
    counts, totals = sums[:ORDERS].tolist(), sums[ORDERS : 2 * ORDERS].tolist()
    lengths = int(sums[-2]), int(sums[-1])
    return sacrebleu_metrics().BLEU.compute_bleu(counts, totals, *lengths, smooth_method="exp").score
