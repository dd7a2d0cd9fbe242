"""How good translations are: BLEU and chrF, whether a difference is chance, and a baseline that only looks up."""

from regard.measure.bleu import Bucket, Score, bleu_by_length, score
from regard.measure.bootstrap import Comparison, compare
from regard.measure.retrieval import Nearest

__all__ = ["Bucket", "Comparison", "Nearest", "Score", "bleu_by_length", "compare", "score"]
