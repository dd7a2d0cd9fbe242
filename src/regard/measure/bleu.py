"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) as sacrebleu computes them, with the signatures to cite; and
the paired bootstrap (Koehn 2004): is the difference between two translation systems significant?"""

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

ORDERS = 4  # BLEU uses n-grams of up to this length
EDGES = (5, 10, 15, 20, 30)  # words per source: 1-5, 6-10, ..., more than 30


class CorpusScore(NamedTuple):
    """One metric of a set of translations."""

    name: str
    value: float  # 0 to 100
    signature: str  # sacrebleu's version and settings

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


class LengthBucket(NamedTuple):
    """BLEU of the sentences whose sources have from `least` to `most` words."""

    least: int
    most: int | None  # None: no limit
    size: int
    bleu: float

    @property
    def words(self) -> str:
        """The range of lengths as text."""
        return f"{self.least}+" if self.most is None else f"{self.least}-{self.most}"


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


def score(outputs: Sequence[str], references: Sequence[str]) -> list[CorpusScore]:
    """Corpus BLEU and chrF of translations, against one reference each."""
    check_parallel(outputs, references)
    metrics = sacrebleu_metrics()
    scores = []
    for name, metric in (("BLEU", metrics.BLEU()), ("chrF", metrics.CHRF())):
        value = metric.corpus_score(list(outputs), [list(references)]).score
        scores.append(CorpusScore(name, value, str(metric.get_signature())))
    return scores


def bleu_by_length(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str], edges: Sequence[int] = EDGES
) -> list[LengthBucket]:
    """BLEU by source length in words, without empty buckets."""
    check_parallel(outputs, references)
    check_parallel(outputs, sources)
    bleu, words = sacrebleu_metrics().BLEU(), [len(source.split()) for source in sources]
    buckets = []
    for least, most in zip((1, *(edge + 1 for edge in edges)), (*edges, None), strict=True):
        these = [i for i, n in enumerate(words) if max(n, 1) >= least and (most is None or max(n, 1) <= most)]
        if these:
            value = bleu.corpus_score([outputs[i] for i in these], [[references[i] for i in these]]).score
            buckets.append(LengthBucket(least, most, len(these), value))
    return buckets


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


def check_parallel(outputs: Sequence[str], others: Sequence[str]) -> None:
    """Refuse different numbers of lines, and no lines."""
    if len(outputs) != len(others):
        raise UserError(
            f"there are {len(outputs):,} translations and {len(others):,} references; give one for each line"
        )
    if not outputs:
        raise UserError("there is no translation to measure; give at least one line")


def sacrebleu_metrics() -> ModuleType:
    """The module `sacrebleu.metrics`; a UserError if it is not installed."""
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise UserError(
            "BLEU and chrF need the sacrebleu package; install it: pip install 'regard[translate]'"
        ) from error
    return metrics
