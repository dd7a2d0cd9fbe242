"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) as sacrebleu computes them, with the signatures to cite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from regard.errors import UserError

EDGES = (5, 10, 15, 20, 30)  # words of a source: 1-5, 6-10, ..., more than 30


class Score(NamedTuple):
    """One figure of a set of translations."""

    name: str
    value: float  # 0 to 100
    signature: str  # how it was computed, sacrebleu's version included

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


class Bucket(NamedTuple):
    """BLEU of the sentences whose sources have from `least` to `most` words."""

    least: int
    most: int | None  # None: any number
    size: int
    bleu: float

    @property
    def words(self) -> str:
        """Which lengths these are, for people."""
        return f"{self.least}+" if self.most is None else f"{self.least}-{self.most}"


def score(outputs: Sequence[str], references: Sequence[str]) -> list[Score]:
    """BLEU and chrF of translations, each against one reference."""
    check(outputs, references)
    metrics = library()
    made = []
    for name, metric in (("BLEU", metrics.BLEU()), ("chrF", metrics.CHRF())):
        value = metric.corpus_score(list(outputs), [list(references)]).score
        made.append(Score(name, value, str(metric.get_signature())))
    return made


def bleu_by_length(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str], edges: Sequence[int] = EDGES
) -> list[Bucket]:
    """BLEU apart for sources of different lengths, in words; lengths that no source has are left out."""
    check(outputs, references)
    check(outputs, sources)
    bleu, words = library().BLEU(), [len(source.split()) for source in sources]
    found = []
    for least, most in zip((1, *(edge + 1 for edge in edges)), (*edges, None), strict=True):
        these = [i for i, n in enumerate(words) if max(n, 1) >= least and (most is None or max(n, 1) <= most)]
        if these:
            value = bleu.corpus_score([outputs[i] for i in these], [[references[i] for i in these]]).score
            found.append(Bucket(least, most, len(these), value))
    return found


def check(outputs: Sequence[str], others: Sequence[str]) -> None:
    """Refuse what cannot be compared line by line."""
    if len(outputs) != len(others):
        raise UserError(
            f"there are {len(outputs):,} translations and {len(others):,} references; give one for each line"
        )
    if not outputs:
        raise UserError("there is no translation to measure; give at least one line")


def library() -> Any:
    """sacrebleu's metrics; a UserError says how to install them."""
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise UserError(
            "BLEU and chrF need the sacrebleu package; install it: pip install 'regard[translate]'"
        ) from error
    return metrics
