"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) as sacrebleu computes them, with the signatures to cite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from regard.errors import UserError

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


def check_parallel(outputs: Sequence[str], others: Sequence[str]) -> None:
    """Refuse different numbers of lines, and no lines."""
    if len(outputs) != len(others):
        raise UserError(
            f"there are {len(outputs):,} translations and {len(others):,} references; give one for each line"
        )
    if not outputs:
        raise UserError("there is no translation to measure; give at least one line")


def sacrebleu_metrics() -> Any:
    """The module `sacrebleu.metrics`; a UserError if it is not installed."""
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise UserError(
            "BLEU and chrF need the sacrebleu package; install it: pip install 'regard[translate]'"
        ) from error
    return metrics
