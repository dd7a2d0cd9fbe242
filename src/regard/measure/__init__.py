"""Translation quality: BLEU and chrF, paired bootstrap significance, and a retrieval baseline."""

from regard.measure.bleu import Comparison, CorpusScore, LengthBucket, bleu_by_length, compare, score
from regard.measure.retrieval import RetrievalBaseline
