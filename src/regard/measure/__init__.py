"""Translation quality: BLEU and chrF, paired bootstrap significance, and a retrieval baseline."""

from regard.measure.bleu import CorpusScore, LengthBucket, bleu_by_length, score
from regard.measure.bootstrap import Comparison, compare
from regard.measure.retrieval import RetrievalBaseline
